// Decoding of possibly invalid UTF-8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace skipdec::runtime {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Keeps complete characters and replaces each maximal invalid part by U+FFFD, like Python's decoder
// with errors="replace".
class Utf8Repair {
 public:
  // Adds bytes and appends the text that is now certain to `text`.
  void push(std::string_view bytes, std::string& text);

  // Ends the text, with U+FFFD for an incomplete character.
  void flush(std::string& text);

 private:
  void begin(std::uint8_t byte, std::string& text);

  std::array<char, 4> held_{};  // bytes of the incomplete character
  int count_ = 0;
  int missing_ = 0;
  std::uint8_t least_ = 0x80, most_ = 0xBF;  // range of the next byte
  // True after ED and one of A0 … BF. These are two errors, which Python reports only after the
  // next byte.
  bool half_surrogate_ = false;
};

// Returns true if this byte is not inside a character.
constexpr bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
}

// Returns the number of characters of valid UTF-8.
std::size_t num_characters(std::string_view text);

// Returns the number of bytes at the start of `text` that are valid UTF-8.
std::size_t valid_utf8_length(std::string_view text);

}  // namespace skipdec::runtime
