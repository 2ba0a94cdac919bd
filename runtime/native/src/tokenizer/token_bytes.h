// What each token stands for.
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

  // "" for an id that is no token.
  std::string_view of(std::int64_t token_id) const;
  bool is_special(std::int64_t token_id) const;

 private:
  // Where the id is in ids_; their number if it is no token.
  std::size_t place_of(std::int64_t token_id) const;

  std::vector<std::uint32_t> ids_;  // ascending
  TextList bytes_;
  std::vector<bool> special_;
};

}  // namespace skipdec::runtime
