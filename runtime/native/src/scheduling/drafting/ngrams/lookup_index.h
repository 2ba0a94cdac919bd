// LookupIndex: an index of the last occurrences of one text's n-grams.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduling/drafting/ngrams/guesses.h"
#include "scheduling/drafting/ngrams/ngrams.h"

namespace skipdec::runtime {

// Maps each 2- to 4-gram of a text to its last occurrence, to find what followed it. Worked: after
// "x y z … x y" it proposes "z" and the tokens after it.
class LookupIndex {
 public:
  // Writes up to ``most`` tokens that followed the latest earlier occurrence of the text's end to
  // ``proposed``. ``tokens`` are the text so far, which only grows from call to call. The evidence
  // for a guess is the number of matching tokens before it, guesses included: 2 is class 0, and 8
  // or more is class 6.
  void propose(const TokenSpan& tokens, std::int64_t most, Guesses& proposed);
  // Returns the expected shares of guesses that hold, by class of evidence.
  static std::vector<double> priors();

 private:
  void add(const TokenSpan& tokens);

  std::unordered_map<NGram, std::size_t, NGramHash> after_;  // the place after an n-gram
  std::size_t done_ = 0;  // n-grams that end before this place are in the index
};

}  // namespace skipdec::runtime
