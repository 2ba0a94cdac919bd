// The tokens that a post-processor puts around a text.
#pragma once

#include "tokenizer/fields.h"
#include "tokenizer/parts.h"

namespace skipdec::runtime {

// Of the field `post_processor` of `document`; none if it is null.
SpecialTokens read_special_tokens(const TokenizerFields& document);

}  // namespace skipdec::runtime
