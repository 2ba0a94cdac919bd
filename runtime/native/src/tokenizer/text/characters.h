// Character classes, as the `tokenizers` package defines them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace skipdec::runtime {

// Bits; a character is a letter, a number, a space, or none of these.
enum CharacterClass : std::uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kWord = 8,       // must not be beside a "single word" added token
  kStripped = 16,  // included by "lstrip" and "rstrip" added tokens
  kDigit = 32,     // separated by the pre-tokenizer Digits
};

std::uint8_t classes_of(char32_t character);

// Returns the character at `text[at]`, valid UTF-8, and moves `at` past it.
char32_t next_character(std::string_view text, std::size_t& at);

// Appends a character in UTF-8.
void append_character(char32_t character, std::string& text);

// Returns the start of the last character of `text[0, end)`; `end` is above 0.
std::size_t start_of_last_character(std::string_view text, std::size_t end);

}  // namespace skipdec::runtime
