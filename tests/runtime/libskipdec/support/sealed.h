// Repairs the digests of documents that were mutated.
#pragma once

#include <string>

#include "files/sha256.h"

namespace skipdec::fuzzing {

// Returns ``text`` with its correct digest if it has a digest; see files/digest.h.
inline std::string sealed(std::string text) {
  const std::string before = "\n  \"digest\": \"";
  constexpr std::size_t kDigits = 64;
  const std::size_t begin = text.find(before) + before.size();
  if (begin < before.size() || begin + kDigits > text.size()) return text;
  text.replace(begin, kDigits, kDigits, '0');
  runtime::Sha256 hash;
  hash.update(text.data(), text.size());
  return text.replace(begin, kDigits, hash.hex_digest());
}

}  // namespace skipdec::fuzzing
