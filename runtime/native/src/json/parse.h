// JSON that somebody else wrote: whatever lies there, a value or an Error.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "json/limits.h"

namespace skipdec::runtime {

// The value of a JSON text in UTF-8; a byte order mark before it is skipped.
// Throws Error(limits.status, subject, ...) for what is not JSON or beyond `limits`, for integers
// of more than 64 bits, and for a key that its object has twice.
nlohmann::json parse_json(std::string_view text, const std::string& subject,
                          const JsonLimits& limits = {});

}  // namespace skipdec::runtime
