// Drafters: the sources of guesses of the next tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduling/decoding.h"
#include "scheduling/drafting/acceptance.h"
#include "scheduling/drafting/ngrams/lookup_index.h"
#include "scheduling/drafting/ngrams/ngram_table.h"

namespace skipdec::runtime {

// Drafting's state of one row: its text, and the results of its drafts.
struct RowDrafts {
  RunningRow row;
  TokenSpan tokens;         // prompt and text
  std::size_t learned = 0;  // the number of tokens that drafters have learned
  LookupIndex index;
  std::vector<RowResults> results;  // by drafter
};

// Returns true if another draft step pays, given the guesses so far of the rows that can use one.
using GoesOn = std::function<bool(const std::vector<Guesses>&)>;

// Proposes tokens that may follow rows' texts; it never determines a text.
class Drafter {
 public:
  virtual ~Drafter() = default;
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  // The drafter's name in figures and measured times.
  virtual std::string source() const = 0;
  // Returns the expected shares of its guesses that hold, by class of evidence.
  virtual std::vector<double> priors() const { return {kPrior}; }
  // Returns how many tokens, up to ``most``, it may draft for the row.
  virtual std::int64_t reach(const RunningRow& /*row*/, std::int64_t most) const { return most; }
  // Writes up to ``most`` tokens for drafts[i] to ``proposed[i]``, which is empty; none if it knows
  // nothing. ``rows`` are all running rows. A drafter that runs layers stops when ``goes_on``, if
  // given, returns false.
  virtual void propose(const std::vector<RowDrafts*>& drafts, const std::vector<RunningRow>& rows,
                       std::int64_t most, const GoesOn& goes_on,
                       std::vector<Guesses>& proposed) = 0;
  // Learns the row's accepted tokens from ``row.learned`` on.
  virtual void learn(const RowDrafts& /*row*/) {}

 private:
  static constexpr double kPrior = 0.5;
};

// Proposes what followed the same n-grams in earlier texts of the engine, or in the texts whose
// n-grams the bundle has.
class OwnDrafter : public Drafter {
 public:
  OwnDrafter(bool per_client, std::shared_ptr<const KnownNGrams> known)
      : tables_(per_client, std::move(known)) {}

  std::string source() const override { return "own"; }
  std::vector<double> priors() const override { return NGramTable::priors(); }
  void propose(const std::vector<RowDrafts*>& drafts, const std::vector<RunningRow>& /*rows*/,
               std::int64_t most, const GoesOn& /*goes_on*/,
               std::vector<Guesses>& proposed) override {
    for (std::size_t index = 0; index < drafts.size(); ++index) {
      tables_.of(client_of(*drafts[index])).propose(drafts[index]->tokens, most, proposed[index]);
    }
  }
  void learn(const RowDrafts& row) override {
    tables_.of(client_of(row)).count(row.tokens, row.learned);
  }

 private:
  static const std::string& client_of(const RowDrafts& drafts) {
    return drafts.row.request->client;
  }

  NGramTables tables_;
};

// Proposes what followed the last tokens where they occurred earlier in the row's prompt and text.
class LookupDrafter : public Drafter {
 public:
  std::string source() const override { return "lookup"; }
  std::vector<double> priors() const override { return LookupIndex::priors(); }
  void propose(const std::vector<RowDrafts*>& drafts, const std::vector<RunningRow>& /*rows*/,
               std::int64_t most, const GoesOn& /*goes_on*/,
               std::vector<Guesses>& proposed) override {
    for (std::size_t index = 0; index < drafts.size(); ++index) {
      drafts[index]->index.propose(drafts[index]->tokens, most, proposed[index]);
    }
  }
};

}  // namespace skipdec::runtime
