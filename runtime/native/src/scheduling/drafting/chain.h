// Chain: the guesses that a row feeds in one pass, and the drafters that made them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "scheduling/drafting/ngrams/guesses.h"

namespace skipdec::runtime {

// The guesses of one drafter, or of layers and then of n-grams.
//
// Worked: layers guess "a b", which hold with 0.8 and 0.4, and an n-gram proposes "c" after them,
// which holds with 0.5. The chain holds with 0.8, 0.4 and 0.2. If "a b" hold and "c" does not, two
// guesses of two held for the layers, and none of one for the n-grams.
class Chain {
 public:
  const TokenSpan& tokens() const { return tokens_; }
  bool empty() const { return tokens_.empty(); }
  void clear() { shorten(0); }
  // Adds guesses of the drafter ``source``. ``chances`` are the probabilities that the first 1, 2,
  // … of them hold if all before them do.
  void add(std::size_t source, const Guesses& guesses, const std::vector<double>& chances);
  // Keeps at most the first ``count`` guesses.
  void shorten(std::size_t count);
  // Returns the probabilities that the first 1, 2, … tokens all hold.
  std::vector<double> chances() const;

  // Receives a drafter, the evidence of its guesses, how many of them were checked, and how many
  // held.
  using Count = std::function<void(std::size_t source, const std::vector<std::size_t>& evidence,
                                   std::size_t checked, std::size_t held)>;
  // Calls ``count`` for each drafter with checked guesses. ``checked`` and ``held`` count the first
  // guesses of the chain.
  void each_result(std::size_t checked, std::size_t held, const Count& count) const;

 private:
  struct Link {
    std::size_t source = 0;
    Guesses guesses;
    std::vector<double> chances;
  };

  std::vector<Link> links_;
  TokenSpan tokens_;  // of all links
};

}  // namespace skipdec::runtime
