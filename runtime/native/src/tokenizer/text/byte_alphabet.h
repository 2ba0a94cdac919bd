// The characters that stand for bytes in the tokens of byte-level BPE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace skipdec::runtime {

// The character, in UTF-8, that stands for `byte`: printable ones of Latin-1 for themselves, U+0100
// and so on for the others.
std::string_view stand_in(std::uint8_t byte);

// Appends the bytes that the characters of `token` stand for; the token's own UTF-8 if one of them
// stands for none.
void append_bytes(std::string_view token, std::string& bytes);

}  // namespace skipdec::runtime
