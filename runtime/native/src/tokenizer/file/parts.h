// The contents of a tokenizer.json that affect encoding and decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "constants.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/model/byte_pairs.h"
#include "tokenizer/text/normalizer.h"
#include "tokenizer/text/pre_tokenizer.h"
#include "tokenizer/token_texts.h"

namespace skipdec::runtime {

constexpr std::uint32_t kMaxTokens = constants::kMaxTokens;  // exclusive bound of ids
constexpr std::size_t kMaxTokenBytes = 1U << 16;             // per token
constexpr std::size_t kMaxAddedBytes = 1U << 18;             // of all added tokens
// Per added token; the time to find added tokens in a text grows with the longest one.
constexpr std::size_t kMaxAddedTokenBytes = 1U << 10;

struct SpecialTokens {
  std::vector<std::uint32_t> before, after;  // ids around a text, if requested
};

struct TokenizerParts {
  BytePairModel model;
  std::vector<AddedToken> added_tokens;  // with their assigned ids
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  SpecialTokens special_tokens;
  DecoderSteps decoder;
};

// Throws UnsupportedTokenizer for kinds that this library does not implement, and Error (kBundle)
// for malformed files and those beyond the limits above.
TokenizerParts read_tokenizer(std::string_view json, const std::string& subject);

}  // namespace skipdec::runtime
