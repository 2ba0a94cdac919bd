// Drafters: where the guesses of the tokens to come are from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "drafting/draft_policy.h"
#include "drafting/lookup_index.h"
#include "drafting/ngram_table.h"

namespace skipdec::runtime {

// What drafting keeps of one row: its text, and the results of its drafts.
struct RowDrafts {
  std::string client;       // who asked, see Request
  std::size_t prompt = 0;   // number of the prompt's tokens
  TokenSpan tokens;         // prompt and text
  std::size_t learned = 0;  // the number of tokens that drafters were told
  LookupIndex index;
  std::vector<Acceptance> acceptance;  // by drafter
};

// Proposes tokens that may follow rows' texts; it never decides a text.
class Drafter {
 public:
  virtual ~Drafter() = default;
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  // Names it in figures and measured times.
  virtual std::string source() const = 0;
  // Writes up to ``most`` tokens for rows[i] to ``proposed[i]``, none where it knows nothing.
  virtual void propose(const std::vector<RowDrafts*>& rows, std::int64_t most,
                       std::vector<TokenSpan>& proposed) = 0;
  // Takes the row's tokens from ``row.learned`` on, which were accepted.
  virtual void learn(const RowDrafts& /*row*/) {}
};

// Proposes what followed the same n-grams in texts that the engine wrote before.
class OwnDrafter : public Drafter {
 public:
  explicit OwnDrafter(bool per_client) : tables_(per_client) {}

  std::string source() const override { return "own"; }
  void propose(const std::vector<RowDrafts*>& rows, std::int64_t most,
               std::vector<TokenSpan>& proposed) override {
    for (std::size_t index = 0; index < rows.size(); ++index) {
      tables_.of(rows[index]->client).propose(rows[index]->tokens, most, proposed[index]);
    }
  }
  void learn(const RowDrafts& row) override {
    tables_.of(row.client).count(row.tokens, row.learned);
  }

 private:
  NGramTables tables_;
};

// Proposes what followed the last tokens where they stood earlier in the row's prompt and text.
class LookupDrafter : public Drafter {
 public:
  std::string source() const override { return "lookup"; }
  void propose(const std::vector<RowDrafts*>& rows, std::int64_t most,
               std::vector<TokenSpan>& proposed) override {
    for (std::size_t index = 0; index < rows.size(); ++index) {
      rows[index]->index.propose(rows[index]->tokens, most, proposed[index]);
    }
  }
};

}  // namespace skipdec::runtime
