// Bytes of each token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/vocabulary.h"

namespace skipdec::runtime {

class TokenBytes {
 public:
  TokenBytes(const Vocabulary& vocabulary, const std::vector<AddedToken>& added);

  // Returns "" for an id that is not a token.
  std::string_view of(std::int64_t token_id) const;
  bool is_special(std::int64_t token_id) const;

 private:
  // Returns the index of the id in ids_, or the size of ids_ if it is not a token.
  std::size_t place_of(std::int64_t token_id) const;

  std::vector<std::uint32_t> ids_;  // ascending
  TextList bytes_;
  std::vector<bool> special_;
};

}  // namespace skipdec::runtime
