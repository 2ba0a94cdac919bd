// Splits text into the pieces that byte-level BPE encodes one by one.
#pragma once

#include <cstddef>
#include <string_view>

namespace skipdec::runtime {

// Returns the end of the piece that starts at `text[start]`; `text` is valid UTF-8 and `start`
// before its end. Pieces are the matches of this expression: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|
// ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t end_of_piece(std::string_view text, std::size_t start);

}  // namespace skipdec::runtime
