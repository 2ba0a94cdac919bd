#include "tokenizer/text/byte_alphabet.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace skipdec::runtime {
namespace {

constexpr std::size_t kCharacters = 0x144;  // the last representing character is U+0143
constexpr std::int16_t kNoByte = -1;

constexpr bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte < 0x7F) || (byte >= 0xA1 && byte < 0xAD) ||
         (byte >= 0xAE && byte < 0x100);
}

struct Alphabet {
  std::array<std::array<char, 2>, 256> written{};  // UTF-8, of one or two bytes
  std::array<std::uint8_t, 256> lengths{};
  std::array<std::int16_t, kCharacters> byte_of{};
};

constexpr Alphabet alphabet() {
  Alphabet made;
  for (std::int16_t& byte : made.byte_of) byte = kNoByte;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned character = is_printable(byte) ? byte : next++;
    made.byte_of[character] = static_cast<std::int16_t>(byte);
    if (character < 0x80) {
      made.written[byte][0] = static_cast<char>(character);
      made.lengths[byte] = 1;
    } else {
      made.written[byte][0] = static_cast<char>(0xC0U | (character >> 6U));
      made.written[byte][1] = static_cast<char>(0x80U | (character & 0x3FU));
      made.lengths[byte] = 2;
    }
  }
  return made;
}

constexpr Alphabet kAlphabet = alphabet();

}  // namespace

std::string_view stand_in(std::uint8_t byte) {
  return {kAlphabet.written[byte].data(), kAlphabet.lengths[byte]};
}

void append_bytes(std::string_view token, std::string& bytes) {
  const std::size_t before = bytes.size();
  for (std::size_t at = 0; at < token.size(); ++at) {
    const auto first = static_cast<std::uint8_t>(token[at]);
    std::size_t character = first;
    if (first >= 0xE0) {
      character = kCharacters;  // three bytes or more: represents no byte
    } else if (first >= 0x80) {
      character = ((first & 0x1FU) << 6U) | (static_cast<std::uint8_t>(token[++at]) & 0x3FU);
    }
    const std::int16_t byte = character < kCharacters ? kAlphabet.byte_of[character] : kNoByte;
    if (byte == kNoByte) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(byte);
  }
}

}  // namespace skipdec::runtime
