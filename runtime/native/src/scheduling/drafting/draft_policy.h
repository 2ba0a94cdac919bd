// Decides which drafter proposes, how many tokens, and whether drafts pay at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduling/drafting/acceptance.h"
#include "scheduling/drafting/ngrams/guesses.h"
#include "scheduling/drafting/pass_costs.h"

namespace skipdec::runtime {

// A drafter's offer to a row: the evidence for each guess, empty if it proposes nothing, and the
// results of earlier guesses. A drafter that runs layers has not guessed yet, so its evidence is
// kUnknown for each token that it may draft.
struct Offer {
  std::vector<std::size_t> evidence;
  const RowResults* results = nullptr;
};

// The offers to one row, by drafter.
using RowOffers = std::vector<Offer>;

// The drafts of a pass: up to ``count`` tokens for each row, from its drafter in ``sources``, if
// any. For layers, `DraftPolicy::goes_on` decides how many instead.
struct DraftChoice {
  std::int64_t count = 0;
  std::vector<std::optional<std::size_t>> sources;  // by row
};

// Chooses in each pass the drafter and the number of tokens with the highest expected gain.
//
// The gain is the expected number of tokens of a pass ÷ its cost: with k guesses, (1 + Σ expected
// to hold) ÷ (1 + further tokens + k draft steps). A guess is expected to hold as often as earlier
// ones of its drafter with the same evidence. The costs of further tokens and of draft steps are
// measured.
//
// Worked: n-grams offer two guesses that hold with 0.5 each, ``ends:3`` any number that hold with
// 0.9 and cost 0.2 a step; a further token costs 0.04. Two n-grams yield 1.75 tokens for 1.08
// (1.62), four steps 4.10 for 1.96 (2.09), seven 5.70 for 2.68 (2.13): layers draft seven. At a
// row whose n-grams hold with 0.95, seven yield 6.73 for 1.28.
//
// After each step, layers know the probability of their guess. They continue to draft, and a pass
// checks their guesses, as long as the probability that the next token holds exceeds its cost times
// that gain.
//
// Nothing is drafted for a row whose best gain is below 1.03. If no guess of a drafter was checked
// for 128 passes, its guesses are expected to hold with 0.8, and it drafts again where that would
// gain.
//
// Drafts have a budget: two passes over one token, 2 % of every further pass, and what they gain,
// up to 16 passes. It pays for what a pass costs beyond its tokens, including the search for
// guesses. No drafts are made that may cost more than is left. If the budget does not cover even
// one draft, drafts pause until it reaches two passes again, because the search alone would use up
// what is added; in the pause, passes without drafts are measured. Trying drafts thus costs a user
// at most 2 % and two passes. The budget never owes more than two passes, because one pass may take
// dozens of a small model's, for reasons other than drafts.
class DraftPolicy {
 public:
  // ``costs`` must outlive this object.
  explicit DraftPolicy(PassCosts& costs) : costs_(costs) {}
  // Adds a drafter after the others.
  void add_source(SourceAcceptance source);
  SourceAcceptance& source(std::size_t index) { return sources_[index]; }

  // Returns true if drafts pause in the next pass, which it counts.
  bool pauses();
  // Returns what ``rows`` draft in a pass of ``num_rows`` rows, which include others. Several
  // n-gram drafters, and at most one that runs layers, may be asked together.
  DraftChoice choose(const std::vector<RowOffers>& rows, std::int64_t num_rows);
  // Returns true if layers should draft another token after ``drafted``, the guesses of the rows
  // that can use one, which are equally long. The token's probability to hold is that of all before
  // it times the share of the drafter's guesses that hold. It is summed over the rows, because they
  // share one draft step.
  bool goes_on(std::size_t source, const std::vector<Guesses>& drafted,
               std::int64_t num_rows) const;
  // Returns how many of each row's drafted tokens a pass should check.
  std::size_t worth_checking(std::size_t source, const std::vector<Guesses>& drafted,
                             std::int64_t num_rows) const;
  // Counts a pass with a search for guesses: its tokens and its whole time or, if it fed no guess
  // or took long for other reasons, only the guesses that held and the time of the search.
  void count_pass(std::int64_t num_rows, std::int64_t written, double seconds);

 private:
  // Passes that drafts may cost beyond 2 % at first, and at once after a pause.
  static constexpr double kCredit = 2;

  // Replaces ``best`` by a choice with more gain that uses n-grams and ``paid``, a drafter that
  // runs layers. Returns false if the budget does not cover one of its drafts.
  bool compare(std::optional<std::size_t> paid, std::int64_t num_rows, DraftChoice& best,
               double& highest);
  DraftChoice assign(std::optional<std::size_t> paid, std::int64_t count, double& held) const;
  // Returns how many of the rows' ``count``-th tokens are expected to hold.
  double held(std::size_t source, const std::vector<Guesses>& drafted, std::size_t count) const;
  // Returns true if a drafter is asked together with ``paid``.
  bool is_asked(std::size_t source, std::optional<std::size_t> paid) const {
    return source == paid || !sources_[source].runs_layers();
  }

  PassCosts& costs_;
  std::vector<SourceAcceptance> sources_;
  double spare_ = kCredit;  // passes over one token per row that drafts may cost
  bool is_pausing_ = false;
  double gain_ = 1;        // expected gain of the last choice
  std::int64_t last_ = 0;  // number of drafts of the last choice
  // Expected tokens of 0, 1, … guesses in the present pass, by row and drafter; empty without an
  // offer.
  std::vector<std::vector<std::vector<double>>> expected_;
};

}  // namespace skipdec::runtime
