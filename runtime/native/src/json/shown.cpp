#include "json/shown.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

namespace skipdec::runtime {
namespace {

constexpr std::size_t kMaxShown = 80;

// Returns the number of bytes of the first UTF-8 character of ``text``; 0 if it is invalid:
// surrogates, overlong forms, and code points from 0x110000 on.
std::size_t character_size(std::string_view text) {
  const auto byte = [text](std::size_t place) {
    return place < text.size() ? static_cast<unsigned char>(text[place]) : 0U;
  };
  const unsigned first = byte(0);
  std::size_t size = 0;
  unsigned least = 0x80, most = 0xbf;  // range of the second byte
  if (first < 0x80) {
    size = text.empty() ? 0 : 1;
  } else if (first >= 0xc2 && first <= 0xdf) {
    size = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    size = 3;
    if (first == 0xe0) least = 0xa0;
    if (first == 0xed) most = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    size = 4;
    if (first == 0xf0) least = 0x90;
    if (first == 0xf4) most = 0x8f;
  }
  for (std::size_t place = 1; place < size; ++place) {
    if (byte(place) < least || byte(place) > most) return 0;
    least = 0x80;
    most = 0xbf;
  }
  return size;
}

// Returns the first ``kMaxShown`` characters of ``text``, which is UTF-8; "…" replaces the rest.
std::string shortened(const std::string& text) {
  std::size_t end = 0;
  for (std::size_t count = 0; count < kMaxShown && end < text.size(); ++count) {
    end += character_size(std::string_view(text).substr(end));
  }
  return end < text.size() ? text.substr(0, end) + "…" : text;
}

std::string hexadecimal(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]};
}

std::string escaped(char character) {
  switch (character) {
    case '\\':
      return "\\\\";
    case '\'':
      return "\\'";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return hexadecimal(static_cast<unsigned char>(character));
  }
}

std::string quoted(std::string_view text) {
  std::string shown = "'";
  // a character takes up to four bytes
  text = text.substr(0, 4 * kMaxShown);
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    const bool is_plain = size > 1 || (size == 1 && text[0] >= ' ' && text[0] != 0x7f &&
                                       text[0] != '\\' && text[0] != '\'');
    shown += is_plain ? std::string(text.substr(0, size)) : escaped(text[0]);
    text.remove_prefix(size > 1 ? size : 1);
  }
  return shown + "'";
}

template <class Values, class Show>
std::string listed(const Values& values, const Show& show) {
  std::string text = "[";
  for (const auto& value : values) {
    if (text.size() > 1) text += ", ";
    text += show(value);
    if (text.size() > 4 * kMaxShown) break;
  }
  return shortened(text + "]");
}

}  // namespace

std::string shown(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer{};
  const double size = std::fabs(value);
  const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = is_plain ? std::chars_format::fixed : std::chars_format::scientific;
  char* const end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
  std::string text(buffer.data(), end);
  if (is_plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string shown(const std::vector<std::int64_t>& values) {
  return listed(values, [](std::int64_t value) { return std::to_string(value); });
}

std::string shown(const std::vector<std::string>& values) { return listed(values, quoted); }

std::string shown_text(std::string_view text) { return shortened(quoted(text)); }

std::optional<std::size_t> num_characters(const std::string& text) {
  std::size_t count = 0;
  for (std::string_view rest = text; !rest.empty(); ++count) {
    const std::size_t size = character_size(rest);
    if (size == 0) return std::nullopt;
    rest.remove_prefix(size);
  }
  return count;
}

}  // namespace skipdec::runtime
