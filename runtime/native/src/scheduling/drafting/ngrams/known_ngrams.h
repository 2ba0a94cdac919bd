// The n-grams of a bundle, which are the initial tables of own drafts.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "bundle/bundle.h"
#include "json/fields.h"
#include "scheduling/drafting/ngrams/ngram_table.h"

namespace skipdec::runtime {

// Parses the n-gram file ``document`` (docs/bundle-format.md). Throws its error unless it is an
// object with at most 65,536 distinct n-grams of tokens below ``vocab_size``.
KnownNGrams parse_ngrams(std::string_view text, std::int64_t vocab_size, const Document& document);

// Returns the n-grams of ``bundle``; nullptr without a file. Throws like `parse_ngrams`.
std::shared_ptr<const KnownNGrams> known_ngrams(const Bundle& bundle);

}  // namespace skipdec::runtime
