// Canonical text of JSON values in a bundle.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "json/fields.h"

namespace skipdec::runtime {

// Writes sorted keys, two spaces per level, characters beyond ASCII as \uXXXX and one newline at
// the end, like Python's json (docs/bundle-format.md).
std::string canonical_text(const nlohmann::json& value);

// Formats a number like Python: 16, 0.98, 1e-05.
std::string number_text(const nlohmann::json& number);

// Throws Error, naming ``document``, unless ``text``, from which ``value`` was parsed, is
// canonical.
void require_canonical(std::string_view text, const nlohmann::json& value,
                       const Document& document);

}  // namespace skipdec::runtime
