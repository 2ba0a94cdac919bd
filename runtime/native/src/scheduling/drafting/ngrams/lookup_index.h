// LookupIndex: where the n-grams of one text occurred last.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduling/drafting/ngrams/guesses.h"
#include "scheduling/drafting/ngrams/ngrams.h"

namespace skipdec::runtime {

// Knows where each 2- to 4-gram of a text occurred last, to find what followed it. Worked: behind
// "x y z … x y" it proposes "z" and what followed it.
class LookupIndex {
 public:
  // Writes up to ``most`` tokens that followed the latest earlier occurrence of the text's end to
  // ``proposed``. ``tokens`` are the text so far, which only grows from call to call. The evidence
  // of a guess is the number of tokens before it that match, guesses included: 2 is class 0, 8 and
  // more class 6.
  void propose(const TokenSpan& tokens, std::int64_t most, Guesses& proposed);
  // Returns the shares that are expected to hold, by class of evidence.
  static std::vector<double> priors();

 private:
  void add(const TokenSpan& tokens);

  std::unordered_map<NGram, std::size_t, NGramHash> behind_;  // the place behind an n-gram
  std::size_t done_ = 0;  // n-grams that end before this place are in the index
};

}  // namespace skipdec::runtime
