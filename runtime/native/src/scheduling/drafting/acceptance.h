// Counts how often guesses hold: by drafter and evidence, and by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skipdec::runtime {

// The number of n-gram guesses that held in one row, and of those that were expected to.
struct RowResults {
  double expected = 0, held = 0;

  // Returns how often the row's guesses hold relative to expectations. Worked: 6 were expected to
  // hold and 1 did: (1 + 4) / (6 + 4) = 0.5.
  double factor() const;
};

// The class of guesses that layers have not made yet; it counts all of their checked guesses.
inline constexpr std::size_t kUnknown = 0;

// Returns the expected shares of layers' guesses that hold: of all guesses, then by
// `confidence_class`.
std::vector<double> layer_priors();

// Returns the class of a guess whose probability in the draft is ``probability``: 1 for 0.1, 5 for
// 0.5, 8 for 1.
std::size_t confidence_class(double probability);

// The share of one drafter's guesses that held, over all rows, by class of evidence. A class begins
// with 4 imagined tries at its prior (16 for layers), and recent tries count most. After 128 passes
// without a checked guess, everything learned is forgotten, so that the drafter is tried again:
// each class then begins with 1 imagined try at 0.8. A class of layers' guesses that was not
// checked for as long begins with 1 imagined try at its prior.
class SourceAcceptance {
 public:
  // ``draft_prior`` is the cost of a draft step, in passes over one token, until it is measured; 0
  // for drafters that run no layers.
  SourceAcceptance(std::string source, const std::vector<double>& priors, double draft_prior = 0);

  const std::string& source() const { return source_; }
  double draft_prior() const { return draft_prior_; }
  bool runs_layers() const { return draft_prior_ > 0; }
  // Returns the share of guesses of this class that held.
  double share(std::size_t evidence) const { return held_[evidence] / tried_[evidence]; }
  // Writes to ``sums`` how many of the first 0, 1, … guesses are expected to hold in a row. For
  // n-grams, which hold in some rows but not in others, the results of the row count. For layers,
  // whose guesses hold about equally often in all rows, they don't, because a few wrong ones would
  // end drafts that pay. Worked: classes that hold with 0.8 and 0.5, in a new row: 0, 0.8 and
  // 0.8 + 0.8 · 0.5 = 1.2.
  void expect(const std::vector<std::size_t>& evidence, const RowResults& row,
              std::vector<double>& sums) const;
  // Returns the probability that the first ``count`` guesses of ``evidence`` all hold. Worked:
  // classes that hold with 0.8 and 0.5 give 0.4.
  double chance(const std::vector<std::size_t>& evidence, std::size_t count) const;
  // Counts the first ``tried`` guesses of ``evidence``, of which the first ``held`` held.
  void add(const std::vector<std::size_t>& evidence, std::size_t tried, std::size_t held,
           RowResults& row);
  // Counts a pass, whether or not it checked guesses.
  void count_pass();

 private:
  void count(std::size_t evidence, bool held);

  std::string source_;
  double draft_prior_;
  std::vector<double> priors_;
  std::vector<double> tried_, held_;
  std::int64_t idle_ = 0;                // passes since a guess was checked
  std::vector<std::int64_t> unchecked_;  // passes since one of the class was checked
};

}  // namespace skipdec::runtime
