// Formats values for messages like Python's repr, up to 80 characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skipdec::runtime {

std::string shown(double value);                             // 0.1, 1e-05, -1.0, nan
std::string shown(const std::vector<std::int64_t>& values);  // [3, -1]
std::string shown(const std::vector<std::string>& values);   // ['.', 'it\'s\n', '\xff']
std::string shown_text(std::string_view text);               // '2x'

// Returns the number of characters of UTF-8 text; nothing if it is invalid.
std::optional<std::size_t> num_characters(const std::string& text);

}  // namespace skipdec::runtime
