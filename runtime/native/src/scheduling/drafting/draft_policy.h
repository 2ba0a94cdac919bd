// Which drafter proposes, how many tokens, and whether drafts pay at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduling/drafting/acceptance.h"
#include "scheduling/drafting/ngrams/guesses.h"
#include "scheduling/drafting/pass_costs.h"

namespace skipdec::runtime {

// What a drafter offers a row: the evidence for each guess, none where it proposes nothing, and
// what came of earlier ones. A drafter that runs layers has not guessed yet: its evidence is
// kUnknown for each token that it may draft.
struct Offer {
  std::vector<std::size_t> evidence;
  const RowResults* results = nullptr;
};

// The offers to one row, by drafter.
using RowOffers = std::vector<Offer>;

// What rows draft in a pass: up to ``count`` tokens, each of the drafter in ``sources``, if any.
// Layers draft as many as `DraftPolicy::goes_on` says instead.
struct DraftChoice {
  std::int64_t count = 0;
  std::vector<std::optional<std::size_t>> sources;  // by row
};

// Chooses in each pass the drafter and the number of tokens with the highest expected gain.
//
// The gain is the number of tokens that a pass is expected to write ÷ its cost: with k guesses, (1
// + Σ expected to hold) ÷ (1 + further tokens + k draft steps). A guess is expected to hold as
// often as earlier ones of its drafter with the same evidence; a pass's further tokens, and draft
// steps, cost what was measured.
//
// Worked: n-grams offer two guesses that hold with 0.5 each, ``ends:3`` any number that hold with
// 0.9 and cost 0.2 a step; a further token costs 0.04. Two n-grams yield 1.75 tokens for 1.08
// (1.62), four steps 4.10 for 1.96 (2.09), seven 5.70 for 2.68 (2.13): layers draft seven. At a
// row whose n-grams hold with 0.95, seven yield 6.73 for 1.28.
//
// Layers know after each step how probable they find their guess. They draft on, and a pass checks
// what they drafted, as long as the chance that the next token holds is more than its cost times
// that gain.
//
// Nothing is drafted for a row whose best gain is below 1.03. A drafter of which nothing was
// checked for 128 passes is expected to hold with 0.8, and drafts again where that would gain.
//
// Drafts have a budget: two passes over one token, 2 % of every further pass, and what they gain,
// up to 4 passes. What a pass cost beyond its tokens, the search for guesses included, is paid out
// of it. Nothing is drafted that may cost more than is left. Where not even one draft is covered,
// nothing is done for drafts until it is half a pass again, since the search alone would use up
// what is added; passes without drafts are measured then. So all that is tried costs a user at most
// 2 % and two passes.
class DraftPolicy {
 public:
  // ``costs`` outlive it.
  explicit DraftPolicy(PassCosts& costs) : costs_(costs) {}
  // Adds a drafter, behind the others.
  void add_source(SourceAcceptance source);
  SourceAcceptance& source(std::size_t index) { return sources_[index]; }

  // Returns whether nothing is to be done for drafts in the next pass, and counts it.
  bool pauses();
  // Returns what ``rows`` draft in a pass of ``num_rows``, the others included. N-grams may be
  // asked together, and with them at most one drafter that runs layers.
  DraftChoice choose(const std::vector<RowOffers>& rows, std::int64_t num_rows);
  // Returns whether layers should draft a further token, behind ``drafted``, equally long. These
  // are the guesses of rows that can use one. Its chance to hold is that of all before it times the
  // share of the drafter's guesses. Those of all rows count, as one draft step serves them
  // together.
  bool goes_on(std::size_t source, const std::vector<Guesses>& drafted,
               std::int64_t num_rows) const;
  // Returns how many of each row's drafted tokens a pass should check.
  std::size_t worth_checking(std::size_t source, const std::vector<Guesses>& drafted,
                             std::int64_t num_rows) const;
  // Counts a pass for which guesses were looked for: its tokens, and all of its time. Of one that
  // fed no guess, or took long for other reasons: the guesses that held, and the search for them.
  void count_pass(std::int64_t num_rows, std::int64_t written, double seconds);

 private:
  // Passes that drafts may cost beyond 2 %, once.
  static constexpr double kFirstCredit = 2;

  // Replaces ``best`` by a choice of higher gain with the n-grams, and ``paid`` that runs layers.
  // Returns false if the budget does not cover one draft of them.
  bool compare(std::optional<std::size_t> paid, std::int64_t num_rows, DraftChoice& best,
               double& highest);
  DraftChoice assign(std::optional<std::size_t> paid, std::int64_t count, double& held) const;
  // Returns how many ``count``-th tokens of the rows are expected to hold.
  double held(std::size_t source, const std::vector<Guesses>& drafted, std::size_t count) const;
  // Returns whether a drafter is asked together with ``paid``.
  bool is_asked(std::size_t source, std::optional<std::size_t> paid) const {
    return source == paid || !sources_[source].runs_layers();
  }

  PassCosts& costs_;
  std::vector<SourceAcceptance> sources_;
  double spare_ = kFirstCredit;  // passes over one token per row that drafts may cost
  bool is_pausing_ = false;
  double gain_ = 1;        // expected of what was chosen last
  std::int64_t last_ = 0;  // the number of drafts that was chosen last
  // Of the present pass: the tokens that are expected of 0, 1, … guesses, by row and drafter; none
  // where there is no offer.
  std::vector<std::vector<std::vector<double>>> expected_;
};

}  // namespace skipdec::runtime
