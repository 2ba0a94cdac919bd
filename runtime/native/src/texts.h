// Parsing of short texts from users and files, and formatting of numbers and lists for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace skipdec::runtime {

// Returns ``text`` without the spaces around it.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\r\f\v";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// Returns ``text`` with ASCII letters in lower case.
inline std::string lowered(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return lower;
}

// Parses one to nine digits; returns nothing for any other text.
inline std::optional<std::int64_t> number_in(std::string_view digits) {
  constexpr std::size_t kMostDigits = 9;
  const bool has_others = digits.find_first_not_of("0123456789") != std::string_view::npos;
  if (digits.empty() || digits.size() > kMostDigits || has_others) return std::nullopt;
  return std::stoll(std::string(digits));
}

// Formats a number with thousands separators: "12,345".
inline std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;  // after the sign
  for (std::size_t end = text.size(); end > first + 3;) text.insert(end -= 3, ",");
  return text;
}

// Joins the results of ``text_of`` for ``items``: "a, b, c".
template <class Items, class TextOf>
std::string joined(const Items& items, const TextOf& text_of) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ", ";
    text += text_of(item);
  }
  return text;
}

template <class Items>
std::string joined(const Items& items) {
  return joined(items, [](std::string_view item) { return item; });
}

}  // namespace skipdec::runtime
