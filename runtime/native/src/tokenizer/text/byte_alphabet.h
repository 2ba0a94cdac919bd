// Characters that represent bytes in the tokens of byte-level BPE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace skipdec::runtime {

// Returns the character, in UTF-8, that represents `byte`: printable Latin-1 characters represent
// themselves; U+0100 and following represent the other bytes.
std::string_view stand_in(std::uint8_t byte);

// Appends the bytes that the characters of `token` represent, or the token's own UTF-8 if one of
// them does not represent a byte.
void append_bytes(std::string_view token, std::string& bytes);

}  // namespace skipdec::runtime
