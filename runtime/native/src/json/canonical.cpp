#include "json/canonical.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace skipdec::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kIndent = 2;

// Formats ``value`` with the shortest digits that round-trip, with an exponent below 1e-4 and from
// 1e16 on, like Python's repr.
std::string float_text(double value) {
  constexpr int kLeastExponent = -4, kMostExponent = 16;
  std::array<char, 40> buffer{};
  const auto written =
      std::to_chars(buffer.begin(), buffer.end(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<std::size_t>(written.ptr - buffer.data()));
  const std::size_t mark = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(mark + 1)));
  if (exponent < kLeastExponent || exponent >= kMostExponent) return std::string(text);
  std::array<char, 400> plain{};
  const auto end = std::to_chars(plain.begin(), plain.end(), value, std::chars_format::fixed);
  std::string fixed(plain.begin(), end.ptr);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

void write(const json& value, std::size_t level, std::string& text) {
  if (!value.is_structured() || value.empty()) {
    text += value.is_number() ? number_text(value) : value.dump(-1, ' ', true);
    return;
  }
  const std::string indent(kIndent * (level + 1), ' ');
  text += value.is_object() ? "{\n" : "[\n";
  bool is_first = true;
  for (const auto& member : value.items()) {
    if (!is_first) text += ",\n";
    is_first = false;
    text += indent;
    if (value.is_object()) text.append(json(member.key()).dump(-1, ' ', true)).append(": ");
    write(member.value(), level + 1, text);
  }
  text.append("\n").append(kIndent * level, ' ').append(value.is_object() ? "}" : "]");
}

}  // namespace

std::string number_text(const json& number) {
  return number.is_number_float() ? float_text(number.get<double>()) : number.dump();
}

std::string canonical_text(const json& value) {
  std::string text;
  write(value, 0, text);
  return text + "\n";
}

void require_canonical(std::string_view text, const json& value, const Document& document) {
  if (text != canonical_text(value)) document.refuse("", "was reformatted or damaged");
}

}  // namespace skipdec::runtime
