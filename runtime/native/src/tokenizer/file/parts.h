// What a tokenizer.json holds, as far as it matters to encoding and decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_pairs.h"

namespace skipdec::runtime {

constexpr std::size_t kMaxTokenizerBytes = std::size_t{64} << 20;
constexpr std::uint32_t kMaxTokens = 1U << 24;  // ids are below
constexpr std::size_t kMaxMerges = 1U << 24;
constexpr std::size_t kMaxTokenBytes = 1U << 16;  // of one token
constexpr std::size_t kMaxAddedBytes = 1U << 18;  // of all added tokens

struct SpecialTokens {
  std::vector<std::uint32_t> before, after;  // a text, where they are asked for
};

struct TokenizerParts {
  BytePairModel model;
  std::vector<AddedToken> added_tokens;  // with the ids that they get
  bool add_prefix_space = false;
  bool use_regex = true;
  bool one_pre_tokenizer = true;  // false: a sequence of one
  SpecialTokens special_tokens;
};

// Throws UnsupportedTokenizer for other kinds than byte-level BPE, Error (kBundle) for what is
// malformed or beyond the limits above.
TokenizerParts read_tokenizer(std::string_view json, const std::string& subject);

}  // namespace skipdec::runtime
