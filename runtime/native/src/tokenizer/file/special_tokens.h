// Tokens that a post-processor adds around a text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "json/fields.h"
#include "tokenizer/file/parts.h"

namespace skipdec::runtime {

// Reads `post_processor` of a tokenizer.json; returns no tokens if it is null.
SpecialTokens read_special_tokens(const nlohmann::json* post_processor, const Document& document);

}  // namespace skipdec::runtime
