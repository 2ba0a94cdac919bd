#include "json/shown.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "tokenizer/text/utf8.h"

namespace skipdec::runtime {

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMost = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() <= kMost) return text;
  std::size_t end = kMost;
  while (end > 0 && !begins_character(text[end])) --end;
  return text.substr(0, end) + "…";
}

std::string shown_text(std::string_view text) {
  constexpr std::size_t kMost = 80;  // bytes; more are not shown
  std::string quoted = shown(nlohmann::json(text.substr(0, kMost)));
  quoted.front() = '\'';
  if (quoted.back() == '"') quoted.back() = '\'';
  return quoted;
}

std::string shown_number(double value) {
  constexpr int kDigits = 6;
  std::array<char, 32> text{};
  const auto written =
      std::to_chars(text.begin(), text.end(), value, std::chars_format::general, kDigits);
  return {text.data(), written.ptr};
}

}  // namespace skipdec::runtime
