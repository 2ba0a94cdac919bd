#include "files/digest.h"

#include <algorithm>
#include <optional>

#include "files/sha256.h"

namespace skipdec::runtime {
namespace {

constexpr std::string_view kBefore = "\n  \"digest\": \"";
constexpr std::size_t kDigits = 64;

// Returns the position of the digits; std::nullopt unless exactly one line is a digest.
std::optional<std::size_t> digits_of(std::string_view text) {
  std::optional<std::size_t> found;
  for (std::size_t at = text.find(kBefore); at != std::string_view::npos;
       at = text.find(kBefore, at + 1)) {
    const std::size_t begin = at + kBefore.size();
    const std::string_view behind = text.substr(std::min(text.size(), begin + kDigits), 2);
    const bool is_line = is_sha256(text.substr(begin, kDigits)) && behind.size() == 2 &&
                         behind[0] == '"' && (behind[1] == ',' || behind[1] == '\n');
    if (!is_line || found) return std::nullopt;
    found = begin;
  }
  return found;
}

}  // namespace

void require_digest(std::string_view text, const Document& document) {
  const std::optional<std::size_t> begin = digits_of(text);
  if (!begin) document.refuse("digest", "is not on exactly one line, with 64 digits");
  Sha256 hash;
  const std::string zeros(kDigits, '0');
  hash.update(text.data(), *begin);
  hash.update(zeros.data(), zeros.size());
  hash.update(text.data() + *begin + kDigits, text.size() - *begin - kDigits);
  const std::string_view written = text.substr(*begin, kDigits);
  const std::string seen = hash.hex_digest();
  if (written != seen)
    document.refuse("digest", "is " + std::string(written.substr(0, 12)) + "…, the content has " +
                                  seen.substr(0, 12) + "…; the file was changed");
}

}  // namespace skipdec::runtime
