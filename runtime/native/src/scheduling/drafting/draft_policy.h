// Which drafter proposes, how many tokens, and whether drafts pay at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduling/drafting/acceptance.h"
#include "scheduling/drafting/pass_costs.h"

namespace skipdec::runtime {

// What a drafter offers a row: the evidence for each guess, none where it proposes nothing, and
// what came of earlier ones. A drafter that runs layers has not guessed yet: its evidence is 0 for
// each token that it may draft.
struct Offer {
  std::vector<std::size_t> evidence;
  const RowResults* results = nullptr;
};

// The offers to one row, by drafter.
using RowOffers = std::vector<Offer>;

// What rows draft in a pass: up to ``count`` tokens, each of the drafter in ``sources``, if any.
struct DraftChoice {
  std::int64_t count = 0;
  std::vector<std::optional<std::size_t>> sources;  // by row
  bool is_try = false;
};

// Chooses at each place the drafter and the number of tokens with the highest expected gain.
//
// The gain is the number of tokens that a pass is expected to write ÷ its cost. A guess is expected
// to hold as often as earlier ones of its drafter with the same evidence; draft steps and passes
// cost what was measured.
//
// Worked: n-grams offer two guesses that hold with 0.5 each, ``ends:3`` any number that hold with
// 0.9 and cost 0.2 a step; passes over 1, 2, 3, 5, 8 tokens cost 1, 1.04, 1.08, 1.16, 1.28. Two
// n-grams yield 1.75 tokens for 1.08 (1.62), four steps 4.10 for 1.96 (2.09), seven 5.70 for 2.68
// (2.13): layers draft seven. At a place where n-grams hold with 0.95, seven yield 6.73 for 1.28.
//
// Nothing is drafted at a place whose best gain is below 1.03. A drafter that has not drafted for
// 16 passes, then 32, … at most 256, drafts two tokens to be tried, if these could gain at all.
//
// Drafts have a budget: two passes over one token, 2 % of every further pass, and what they gain,
// up to 4 passes. What a pass cost beyond its tokens, the search for guesses included, is paid out
// of it. Nothing is drafted that may cost more than is left. Where it is used up, nothing is done
// for drafts until it is half a pass again, and passes without drafts are measured then. So all
// that is tried costs a user at most 2 % and two passes.
class DraftPolicy {
 public:
  // ``costs`` outlive it.
  explicit DraftPolicy(PassCosts& costs) : costs_(costs) {}
  // Adds a drafter, behind the others.
  void add_source(SourceAcceptance source);
  SourceAcceptance& source(std::size_t place) { return sources_[place]; }

  // Returns whether nothing is to be done for drafts in the next pass, and counts it.
  bool pauses();
  // Returns what ``rows`` draft in a pass of ``num_rows``, the others included.
  DraftChoice choose(const std::vector<RowOffers>& rows, std::int64_t num_rows);
  // Counts a pass for which guesses were looked for: its tokens, and all of its time.
  void count_pass(std::int64_t num_rows, std::int64_t written, double seconds);
  // Counts a pass that took long for other reasons, by its search and the guesses that held.
  void count_search(std::int64_t num_rows, std::int64_t held, double seconds);

 private:
  // Passes that drafts may cost beyond 2 %, once.
  static constexpr double kFirstCredit = 2;

  // When a drafter is tried whose guesses are not expected to gain.
  struct Tries {
    std::int64_t wait, left;
  };
  // A choice, and the gain that it is expected to have.
  struct Candidate {
    double gain = 0;
    DraftChoice choice;
  };

  void count(std::int64_t num_rows, double seconds, double earned);
  // Returns true if a pass of ``cost`` may be lost.
  bool affords(double cost) const { return cost - 1 <= spare_; }
  bool try_overdue(const std::vector<RowOffers>& rows, std::int64_t num_rows, DraftChoice& found);
  DraftChoice best(std::size_t num_sources, std::int64_t num_rows);
  void find_candidates(const std::vector<std::size_t>& asked, std::optional<std::size_t> paid,
                       std::int64_t num_rows);
  void assign(const std::vector<std::size_t>& asked, std::size_t count, DraftChoice& choice,
              double& held) const;

  PassCosts& costs_;
  std::vector<SourceAcceptance> sources_;
  std::vector<Tries> tries_;
  double spare_ = kFirstCredit;  // passes over one token per row that drafts may cost
  bool is_pausing_ = false;
  std::int64_t last_ = 0;  // the number of drafts that was chosen last
  // Of the present pass: costs by tokens, those of steps by drafter, and the tokens that are
  // expected of 0, 1, … guesses, by row and drafter; none where there is no offer.
  std::vector<double> passes_, steps_;
  std::vector<std::vector<std::vector<double>>> expected_;
  std::vector<Candidate> candidates_;
};

}  // namespace skipdec::runtime
