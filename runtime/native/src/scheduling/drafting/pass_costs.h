// What passes and draft steps cost, measured while the engine runs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skipdec::runtime {

// The mean of the last 15 samples of one cost, but for the highest. After a pause of 256 passes the
// earlier ones are forgotten.
class RecentMean {
 public:
  // Adds a sample of pass ``number``.
  void add(double sample, std::int64_t number);
  // Returns true once two were measured: the first may have found all cold.
  bool is_measured() const { return count_ >= 2; }
  // Returns true if none was measured in the 256 passes up to ``number``.
  bool is_stale(std::int64_t number) const;
  double mean() const { return mean_; }

 private:
  std::array<double, 15> last_{};
  std::int64_t count_ = 0;   // of all that were added and not forgotten
  std::int64_t number_ = 0;  // of the last pass
  double mean_ = 0;
};

// Measured costs of passes over one token per row, of further tokens, and of draft steps. A pass
// takes as long as all that is done for its tokens, draft steps aside. Rows fall into the classes
// 1, 2, 4, 8, … A cost is forgotten 256 passes after it was last measured, so that what looked slow
// once is tried again.
class PassCosts {
 public:
  // Adds a pass whose longest row fed ``tokens`` tokens.
  void add_pass(std::int64_t rows, std::int64_t tokens, double seconds);
  // Adds a step of a drafter that runs layers. ``is_first``: it bound engines, so that it took
  // longer than later ones; its cost does not count then.
  void add_draft(const std::string& source, std::int64_t rows, double seconds,
                 bool is_first = false);
  // The number of steps that were added.
  std::int64_t draft_steps() const { return draft_steps_; }
  // The seconds of these steps.
  double draft_seconds() const { return draft_seconds_; }
  // Returns true if a pass of one token per row should be measured now.
  bool wants_plain(std::int64_t rows) const;
  // Lets passes of one token per row be measured next.
  void measure_plain_again() { plain_left_.clear(); }
  // Returns ``seconds`` in passes over one token per row, or nothing before these were measured.
  std::optional<double> in_plain_passes(std::int64_t rows, double seconds) const;
  // Returns what a pass costs more if its longest row feeds ``drafts`` tokens more: in passes over
  // one token, at most one for each token, and at most what a longer pass was measured to cost:
  // times are noisy. Until passes with so many are measured, they are expected to cost what the
  // longest measured ones below them do, and for each token more half of what these cost a token,
  // at least 4 % of a pass of one row. Worked, one row: a pass with one token more costs 1.4, so
  // one with 3 more is expected to cost 1.4 + 2 · 0.2, and 0.8 is returned. If one with 4 more
  // costs 1.3, it is 0.3.
  double further(std::int64_t rows, std::int64_t drafts) const;
  // Returns the cost of a draft step, in passes over one token; ``prior`` until it is measured.
  double draft_cost(const std::string& source, std::int64_t rows, double prior) const;

 private:
  std::map<std::int64_t, RecentMean> plain_;  // seconds, by class of rows
  std::map<std::pair<std::int64_t, std::int64_t>, RecentMean> further_;  // class of rows, drafts
  std::map<std::pair<std::string, std::int64_t>, RecentMean> steps_;     // seconds; source, class
  std::int64_t draft_steps_ = 0;
  double draft_seconds_ = 0;
  std::map<std::int64_t, std::int64_t> count_;       // passes, by class of rows
  std::map<std::int64_t, std::int64_t> plain_left_;  // wanted over one token, by class of rows
};

}  // namespace skipdec::runtime
