// The digest that a document of a bundle holds of itself.
#pragma once

#include <string>
#include <string_view>

#include "json/fields.h"

namespace skipdec::runtime {

// Returns the digest of manifest.json or schedule.json: what stands in its line
//   "digest": "<64 hexadecimal digits>"
// (indented by two spaces, once in the file) is the SHA-256 of all its bytes, with zeros for those
// digits. Throws Error, by ``document``, if there is no such line or if it differs.
std::string checked_digest(std::string_view text, const Document& document);

}  // namespace skipdec::runtime
