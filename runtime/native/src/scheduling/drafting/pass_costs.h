// The costs of passes and draft steps, measured while the engine runs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skipdec::runtime {

// The mean of the last 15 samples of one cost without the highest. After 256 passes without a
// sample, earlier samples are forgotten.
class RecentMean {
 public:
  // Adds a sample of pass ``number``.
  void add(double sample, std::int64_t number);
  // Returns true once there are two samples, because the first may have found everything cold.
  bool is_measured() const { return count_ >= 2; }
  // Returns true if the 256 passes up to ``number`` added no sample.
  bool is_stale(std::int64_t number) const;
  double mean() const { return mean_; }

 private:
  std::array<double, 15> last_{};
  std::int64_t count_ = 0;   // of all samples that are not forgotten
  std::int64_t number_ = 0;  // of the last pass
  double mean_ = 0;
};

// Measured costs of passes over one token per row, of further tokens, and of draft steps. The time
// of a pass includes all work for its tokens except draft steps. Rows fall into the classes 1, 2,
// 4, 8, … A cost is forgotten 256 passes after its last measurement, so that what was slow once is
// tried again.
class PassCosts {
 public:
  // Adds a pass whose longest row fed ``tokens`` tokens.
  void add_pass(std::int64_t rows, std::int64_t tokens, double seconds);
  // Adds a step of a drafter that runs layers. ``is_first``: the step bound engines and so took
  // longer than later ones; its cost does not count.
  void add_draft(const std::string& source, std::int64_t rows, double seconds,
                 bool is_first = false);
  // The number of steps added.
  std::int64_t draft_steps() const { return draft_steps_; }
  // The seconds of these steps.
  double draft_seconds() const { return draft_seconds_; }
  // Returns true if a pass of one token per row should be measured now.
  bool wants_plain(std::int64_t rows) const;
  // Makes the next passes measure one token per row.
  void measure_plain_again() { plain_left_.clear(); }
  // Returns ``seconds`` in passes over one token per row, or nothing until these are measured.
  std::optional<double> in_plain_passes(std::int64_t rows, double seconds) const;
  // Returns the extra cost of a pass whose longest row feeds ``drafts`` more tokens, in passes over
  // one token. It is at most one per token and, because times are noisy, at most the measured cost
  // of a longer pass. Until passes with so many tokens are measured, they are expected to cost as
  // much as the longest measured ones below them and, per additional token, half of what these cost
  // per token, but at least 4 % of a pass of one row. Worked, for one row: if a pass with one more
  // token costs 1.4, one with 3 more is expected to cost 1.4 + 2 · 0.2, and 0.8 is returned. If a
  // pass with 4 more costs 1.3, 0.3 is returned.
  double further(std::int64_t rows, std::int64_t drafts) const;
  // Returns the cost of a draft step, in passes over one token; ``prior`` until it is measured.
  double draft_cost(const std::string& source, std::int64_t rows, double prior) const;

 private:
  std::map<std::int64_t, RecentMean> plain_;  // seconds, by class of rows
  std::map<std::pair<std::int64_t, std::int64_t>, RecentMean> further_;  // class of rows, drafts
  std::map<std::pair<std::string, std::int64_t>, RecentMean> steps_;     // seconds; source, class
  std::int64_t draft_steps_ = 0;
  double draft_seconds_ = 0;
  std::map<std::int64_t, std::int64_t> count_;  // passes, by class of rows
  // Passes over one token that are still to measure, by class of rows.
  std::map<std::int64_t, std::int64_t> plain_left_;
};

}  // namespace skipdec::runtime
