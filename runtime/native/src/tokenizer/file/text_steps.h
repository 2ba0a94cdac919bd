// The steps of a tokenizer.json before and after its model.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "json/fields.h"
#include "tokenizer/file/parts.h"

namespace skipdec::runtime {

// Each function reads one component; ``value`` is null if the file has none. All throw
// UnsupportedTokenizer for kinds and combinations that are not implemented, and an error of
// ``document`` for malformed ones.
Normalizer read_normalizer(const nlohmann::json* value, const Document& document);
PreTokenizer read_pre_tokenizer(const nlohmann::json* value, const Document& document);
DecoderSteps read_decoder(const nlohmann::json* value, const Document& document);

// Refuses a normalizer and a pre-tokenizer that are not implemented together.
void check_together(const Normalizer& normalizer, const PreTokenizer& pre_tokenizer,
                    const Document& document);

}  // namespace skipdec::runtime
