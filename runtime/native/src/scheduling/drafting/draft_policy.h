// How many tokens to draft: what passes cost, how often drafts hold, and when to stop drafting.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
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

// Drafted tokens that were checked, and those of them that were right.
struct Acceptance {
  double tried = 0, held = 0;

  // Returns the share that held, as if 8 more had been tried and ``share`` of them held.
  double drawn_towards(double share) const;
};

// Chooses how many tokens one drafter proposes, from its acceptance and the passes' costs.
//
// Worked: drafts hold with 0.8 and cost nothing, a pass over 5 tokens costs 1.25: 4 drafts yield
// 1 + 0.8 + 0.64 + 0.51 + 0.41 = 3.36 tokens for 1.25, a gain of 2.7.
//
// Drafts are off while the best gain is below 1.03. Two are then tried after 16 passes, after 32
// more, … at most 256, until a try brings the gain back; none where they could not gain even if all
// of them held.
class DraftPolicy {
 public:
  // ``costs`` outlive it. ``draft_prior``: a draft step's cost, in passes over one token, until it
  // is measured.
  DraftPolicy(std::string source, const PassCosts& costs, double draft_prior = 0);

  const std::string& source() const { return source_; }
  // The share of checked drafts that held, over all rows, the last ones most.
  double acceptance() const { return engine_.held / engine_.tried; }
  // Returns how many tokens to draft for each of ``rows``: 0, 1, 2, 4 or 7, up to ``most``;
  // ``num_rows`` run in the pass, with those that do not draft.
  std::int64_t choose(const std::vector<Acceptance>& rows, std::int64_t num_rows,
                      std::int64_t most);
  // Counts a pass in which its rows drafted.
  void add(const Acceptance& results);
  // Counts a pass, behind which a try may come.
  void count_pass() { passes_left_ = std::max<std::int64_t>(0, passes_left_ - 1); }

 private:
  void find_costs(std::int64_t num_rows, std::int64_t most);
  void find_gains(const std::vector<double>& shares);
  std::int64_t best(std::int64_t most) const;

  std::string source_;
  const PassCosts& costs_;
  double draft_prior_;
  Acceptance engine_;
  bool is_on_ = true;
  bool has_news_ = true;  // results have come since the gain was last computed
  std::int64_t wait_;
  std::int64_t passes_left_ = 0;         // until the next try, while drafts are off
  std::int64_t last_ = 0;                // the number of drafts that was chosen last
  std::vector<double> cycle_costs_;      // of a pass with 0, 1, … drafts
  std::vector<double> gains_;            // of 0, 1, … drafts over none
  std::vector<double> shares_, powers_;  // of the rows
};

}  // namespace skipdec::runtime
