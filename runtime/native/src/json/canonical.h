// The one text that a JSON value has in a bundle.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "json/fields.h"

namespace skipdec::runtime {

// Keys sorted, two spaces a level, characters beyond ASCII as \uXXXX, one newline at the end, as
// Python's json writes it (docs/bundle-format.md).
std::string canonical_text(const nlohmann::json& value);

// A number as Python writes it: 16, 0.98, 1e-05.
std::string number_text(const nlohmann::json& number);

// Throws Error, by ``document``, unless ``text``, from which ``value`` was parsed, is its canonical
// text.
void require_canonical(std::string_view text, const nlohmann::json& value,
                       const Document& document);

}  // namespace skipdec::runtime
