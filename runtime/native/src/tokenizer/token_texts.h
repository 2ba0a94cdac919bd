// The text of each token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/model/vocabulary.h"
#include "tokenizer/text/normalizer.h"

namespace skipdec::runtime {

// The decoder of a tokenizer.json: either byte-level, where the bytes of tokens join to UTF-8, or
// these steps in this order, all of which are optional.
struct DecoderSteps {
  bool byte_level = false;
  std::vector<Replacement> replacements;  // in each token
  bool byte_fallback = false;             // tokens <0x00> … <0xFF> are bytes
  std::string stripped;                   // a character
  std::size_t most_stripped = 0;          // number of it stripped at the start of the joined text
};

// Returns the byte that a token like <0x0A> represents; -1 for any other.
int byte_of(std::string_view token);

class TokenTexts {
 public:
  TokenTexts(const Vocabulary& vocabulary, const std::vector<AddedToken>& added,
             DecoderSteps decoder);

  const DecoderSteps& decoder() const { return decoder_; }

  // Returns the text of a token, or its bytes if it represents bytes; "" for an id without a token.
  std::string_view of(std::int64_t token_id) const;
  bool is_token(std::int64_t token_id) const { return place_of(token_id) < ids_.size(); }
  bool is_special(std::int64_t token_id) const;
  // Returns true for a byte-fallback token.
  bool is_byte(std::int64_t token_id) const;

 private:
  void add(std::uint32_t id, std::string_view token, bool special);
  // Returns the index of the id in ids_, or the size of ids_ if it is not a token.
  std::size_t place_of(std::int64_t token_id) const;

  DecoderSteps decoder_;
  std::vector<std::uint32_t> ids_;  // ascending
  TextList texts_;
  std::vector<bool> special_, byte_;
};

}  // namespace skipdec::runtime
