// The pieces that byte-level BPE encodes one by one.
#pragma once

#include <cstddef>
#include <string_view>

namespace skipdec::runtime {

// Where the piece that starts at `text[start]` ends; `text` is valid UTF-8, `start` before its end.
// Pieces are what this expression finds:
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t end_of_piece(std::string_view text, std::size_t start);

}  // namespace skipdec::runtime
