#include "tokenizer/text/utf8.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace skipdec::runtime {
namespace {

// Bytes that may follow a first byte: their number, and the range of the next one.
struct Sequence {
  int missing = -1;  // -1: not a first byte
  std::uint8_t least = 0x80, most = 0xBF;
};

Sequence sequence_of(std::uint8_t byte) {
  if (byte < 0x80) return {0};
  if (byte < 0xC2 || byte > 0xF4) return {};
  if (byte < 0xE0) return {1};
  if (byte < 0xF0) {
    const std::uint8_t least = byte == 0xE0 ? 0xA0 : 0x80;
    const std::uint8_t most = byte == 0xED ? 0x9F : 0xBF;  // no surrogates
    return {2, least, most};
  }
  const std::uint8_t least = byte == 0xF0 ? 0x90 : 0x80;
  const std::uint8_t most = byte == 0xF4 ? 0x8F : 0xBF;
  return {3, least, most};
}

}  // namespace

void Utf8Repair::push(std::string_view bytes, std::string& text) {
  if (bytes.empty()) return;
  if (half_surrogate_) flush(text);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const auto byte = static_cast<std::uint8_t>(bytes[at]);
    if (missing_ == 0) {
      begin(byte, text);
    } else if (byte >= least_ && byte <= most_) {
      held_[count_++] = bytes[at];
      least_ = 0x80, most_ = 0xBF;
      if (--missing_ == 0) text.append(held_.data(), count_);
    } else if (most_ == 0x9F && byte >= 0xA0 && byte <= 0xBF && at + 1 == bytes.size()) {
      half_surrogate_ = true;
    } else {
      text += kReplacementCharacter;
      missing_ = 0;
      begin(byte, text);
    }
  }
}

void Utf8Repair::begin(std::uint8_t byte, std::string& text) {
  const Sequence sequence = sequence_of(byte);
  if (sequence.missing == 0) {
    text += static_cast<char>(byte);
  } else if (sequence.missing < 0) {
    text += kReplacementCharacter;
  } else {
    held_[0] = static_cast<char>(byte);
    count_ = 1;
    missing_ = sequence.missing;
    least_ = sequence.least, most_ = sequence.most;
  }
}

void Utf8Repair::flush(std::string& text) {
  if (missing_ > 0) text += kReplacementCharacter;
  if (half_surrogate_) text += kReplacementCharacter;
  missing_ = 0;
  half_surrogate_ = false;
}

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::size_t valid_utf8_length(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;  // eight bytes at once while they are ASCII
    if (text.size() - at >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    Sequence sequence = sequence_of(static_cast<std::uint8_t>(text[at]));
    const auto missing = static_cast<std::size_t>(sequence.missing);
    if (sequence.missing < 0 || text.size() - at <= missing) return at;
    for (std::size_t place = at + 1; place <= at + missing; ++place) {
      const auto byte = static_cast<std::uint8_t>(text[place]);
      if (byte < sequence.least || byte > sequence.most) return at;
      sequence.least = 0x80, sequence.most = 0xBF;
    }
    at += missing + 1;
  }
  return at;
}

}  // namespace skipdec::runtime
