#include "scheduling/drafting/ngrams/lookup_index.h"

#include <algorithm>

namespace skipdec::runtime {

namespace {

constexpr std::int64_t kLeastLookupTokens = 2;
constexpr std::int64_t kMostMatched = 8;  // longest match that has a class of its own
constexpr double kPrior = 0.5;

static_assert(constants::kDraftLookupTokens <= constants::kDraftNgramTokens);

}  // namespace

void LookupIndex::propose(const TokenSpan& tokens, std::int64_t most, Guesses& proposed) {
  add(tokens);
  proposed.clear();
  const auto size = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t length = std::min(constants::kDraftLookupTokens, size);
       length >= kLeastLookupTokens; --length) {
    const auto found = after_.find(NGram::before(tokens.data() + size, length));
    if (found == after_.end()) continue;
    const auto start = static_cast<std::int64_t>(found->second);
    for (std::int64_t index = start; index < std::min(start + most, size); ++index) {
      const std::int64_t matched = std::min(length + index - start, kMostMatched);
      proposed.add(tokens[static_cast<std::size_t>(index)],
                   static_cast<std::size_t>(matched - kLeastLookupTokens));
    }
    return;
  }
}

std::vector<double> LookupIndex::priors() {
  return std::vector<double>(kMostMatched - kLeastLookupTokens + 1, kPrior);
}

// Adds the n-grams that end before the last token, which therefore have a follower.
void LookupIndex::add(const TokenSpan& tokens) {
  for (std::size_t end = std::max<std::size_t>(done_, kLeastLookupTokens); end < tokens.size();
       ++end) {
    const auto longest = std::min(constants::kDraftLookupTokens, static_cast<std::int64_t>(end));
    for (std::int64_t length = kLeastLookupTokens; length <= longest; ++length) {
      after_[NGram::before(tokens.data() + end, length)] = end;
    }
  }
  done_ = std::max(done_, tokens.size());
}

}  // namespace skipdec::runtime
