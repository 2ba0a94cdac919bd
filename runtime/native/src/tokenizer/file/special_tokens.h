// The tokens that a post-processor puts around a text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "json/fields.h"
#include "tokenizer/file/parts.h"

namespace skipdec::runtime {

// Of `post_processor` in a tokenizer.json; none if it is null.
SpecialTokens read_special_tokens(const nlohmann::json* post_processor, const Document& document);

}  // namespace skipdec::runtime
