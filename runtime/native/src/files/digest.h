// The digest that a bundle's document contains.
#pragma once

#include <string_view>

#include "json/fields.h"

namespace skipdec::runtime {

// Checks the digest of manifest.json or schedule.json, in its line
//   "digest": "<64 hexadecimal digits>"
// (indented by two spaces, once in the file). It is the SHA-256 of all its bytes with zeros in
// place of those digits. Throws Error, naming ``document``, if the line is missing or the digest
// differs.
void require_digest(std::string_view text, const Document& document);

}  // namespace skipdec::runtime
