// Classes of characters, as the `tokenizers` package knows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace skipdec::runtime {

// Bits; a character is a letter, a number, a space or none of these.
enum CharacterClass : std::uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kWord = 8,       // may not stand beside an added token of the kind "single word"
  kStripped = 16,  // taken in by added tokens of the kinds "lstrip" and "rstrip"
};

std::uint8_t classes_of(char32_t character);

// The character that starts at `text[at]`, valid UTF-8; `at` moves behind it.
char32_t next_character(std::string_view text, std::size_t& at);

// Where the last character of `text[0, end)` starts; `end` is above 0.
std::size_t start_of_last_character(std::string_view text, std::size_t end);

}  // namespace skipdec::runtime
