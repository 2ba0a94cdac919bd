// Guesses: tokens that may follow a text, and the evidence for each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stitching/prompts.h"

namespace skipdec::runtime {

// Tokens that a drafter proposes, and the class of evidence for each, a small number. The drafter's
// priors have an entry for each class.
struct Guesses {
  TokenSpan tokens;
  std::vector<std::size_t> evidence;

  void clear() {
    tokens.clear();
    evidence.clear();
  }
  void add(std::int64_t token, std::size_t of_class) {
    tokens.push_back(token);
    evidence.push_back(of_class);
  }
  // Keeps at most the first ``count``.
  void shorten(std::size_t count) {
    tokens.resize(std::min(count, tokens.size()));
    evidence.resize(tokens.size());
  }
};

}  // namespace skipdec::runtime
