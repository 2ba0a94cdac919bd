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

// The last 15 measured times of one kind of pass. After a pause of 256 passes the earlier ones are
// forgotten.
class RecentSeconds {
 public:
  // Adds a time of pass ``number``.
  void add(double seconds, std::int64_t number);
  // Returns true once a few were measured.
  bool is_measured() const { return count_ >= 3; }
  // Returns true if none was measured in the 256 passes up to ``number``.
  bool is_stale(std::int64_t number) const;
  // Returns the mean without the slowest, and at least a nanosecond.
  double cost() const { return cost_; }

 private:
  std::array<double, 15> last_{};
  std::int64_t count_ = 0;   // of all that were added and not forgotten
  std::int64_t number_ = 0;  // of the last pass
  double cost_ = 0;
};

// Measured seconds of passes, and of draft steps, by the number of rows. A pass takes as long as
// all that is done for its tokens, draft steps aside. Rows fall into the classes 1, 2, 4, 8, … A
// cost is forgotten 256 passes after it was last measured, so that what looked slow once is tried
// again.
class PassCosts {
 public:
  // Adds a pass whose longest row fed ``tokens`` tokens.
  void add_pass(std::int64_t rows, std::int64_t tokens, double seconds);
  // Adds a step of a drafter that runs layers.
  void add_draft(const std::string& source, std::int64_t rows, double seconds);
  // The number of steps that were added.
  std::int64_t draft_steps() const { return draft_steps_; }
  // Returns true if a pass of one token per row should be measured now.
  bool wants_plain(std::int64_t rows) const;
  // Lets passes of one token per row be measured next.
  void measure_plain_again() { plain_left_.clear(); }
  // Returns ``seconds`` in passes over one token per row, or nothing before these were measured.
  std::optional<double> in_plain_passes(std::int64_t rows, double seconds) const;
  // The seconds of these steps.
  double draft_seconds() const { return draft_seconds_; }
  // Returns what passes over 1 to ``most`` tokens per row cost, in passes over one each. What was
  // not measured costs as much as the next longer pass that was, and at most 4 % of a step more for
  // each token of a row than the next shorter one.
  std::vector<double> pass_costs(std::int64_t rows, std::int64_t most) const;
  // Returns the cost of a draft step, in passes over one token; ``prior`` until it is measured.
  double draft_cost(const std::string& source, std::int64_t rows, double prior) const;

 private:
  const RecentSeconds* plain(std::int64_t rows) const;
  std::int64_t& plain_left(std::int64_t size);

  std::map<std::pair<std::int64_t, std::int64_t>, RecentSeconds> passes_;  // class of rows, tokens
  std::map<std::pair<std::string, std::int64_t>, RecentSeconds> drafts_;   // source, class of rows
  std::int64_t draft_steps_ = 0;
  double draft_seconds_ = 0;
  std::map<std::int64_t, std::int64_t> count_;  // passes, by class of rows
  std::map<std::int64_t, std::int64_t> plain_;  // the last one over one token, of them
  std::map<std::int64_t, std::int64_t>
      plain_left_;  // such passes that are wanted, by class of rows
};

}  // namespace skipdec::runtime
