// Reads components of a tokenizer.json by their type.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "json/fields.h"
#include "tokenizer/file/unsupported.h"

namespace skipdec::runtime {

// Throws UnsupportedTokenizer for a type among ``known``, those of the `tokenizers` package, and
// Error for any other.
template <std::size_t size>
[[noreturn]] void refuse_kind(const std::string& what, const std::string& type,
                              const std::array<std::string_view, size>& known,
                              const Document& document) {
  const std::string named = shown(nlohmann::json(type));
  if (std::find(known.begin(), known.end(), type) == known.end())
    document.refuse(what, "has the unknown type " + named);
  throw UnsupportedTokenizer(document.subject, "has the " + what + " " + named);
}

// Reads a flag that has no default.
inline bool required_flag(Fields& fields, const char* name) {
  fields.value(name);
  return fields.boolean(name, false);
}

// Checks the fields that `ByteLevel` has as a pre-tokenizer, decoder and post-processor.
inline void check_byte_level(Fields& fields) {
  required_flag(fields, "add_prefix_space");
  required_flag(fields, "trim_offsets");
  fields.boolean("use_regex", true);
}

}  // namespace skipdec::runtime
