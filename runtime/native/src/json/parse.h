// Parses untrusted JSON into a value, or throws Error.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "json/limits.h"

namespace skipdec::runtime {

// Parses JSON text in UTF-8, skipping a byte order mark. Throws Error(limits.status, subject, ...)
// for invalid JSON, a text beyond `limits`, integers of more than 64 bits, and duplicate keys.
nlohmann::json parse_json(std::string_view text, const std::string& subject,
                          const JsonLimits& limits = {});

}  // namespace skipdec::runtime
