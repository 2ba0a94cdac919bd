// Formats values for messages; shortens long ones.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace skipdec::runtime {

std::string shown(const nlohmann::json& value);  // 3, "2x", an array
std::string shown_text(std::string_view text);   // '2x'; U+FFFD replaces what is not UTF-8
std::string shown_number(double value);          // 0.1, nan

}  // namespace skipdec::runtime
