#include "scheduling/drafting/lookup_index.h"

#include <algorithm>

namespace skipdec::runtime {

namespace {

constexpr std::int64_t kLeastLookupTokens = 2;

static_assert(constants::kDraftLookupTokens <= constants::kDraftNgramTokens);

}  // namespace

void LookupIndex::propose(const TokenSpan& tokens, std::int64_t most, TokenSpan& proposed) {
  add(tokens);
  proposed.clear();
  const auto size = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t length = std::min(constants::kDraftLookupTokens, size);
       length >= kLeastLookupTokens; --length) {
    const auto found = behind_.find(NGram::before(tokens.data() + size, length));
    if (found == behind_.end()) continue;
    const auto place = static_cast<std::int64_t>(found->second);
    proposed.assign(tokens.begin() + place, tokens.begin() + std::min(place + most, size));
    return;
  }
}

// Adds the n-grams that end before the last token, behind which something follows.
void LookupIndex::add(const TokenSpan& tokens) {
  for (std::size_t end = std::max<std::size_t>(done_, kLeastLookupTokens); end < tokens.size();
       ++end) {
    const auto longest = std::min(constants::kDraftLookupTokens, static_cast<std::int64_t>(end));
    for (std::int64_t length = kLeastLookupTokens; length <= longest; ++length) {
      behind_[NGram::before(tokens.data() + end, length)] = end;
    }
  }
  done_ = std::max(done_, tokens.size());
}

}  // namespace skipdec::runtime
