// Versions of the library and the last error.
#include <array>
#include <string_view>

#include "abi/guard.h"
#include "tokenizer/text/utf8.h"

namespace {

// Fixed memory, so that reporting an error never allocates.
std::array<char, 4096>& last_error() {
  thread_local std::array<char, 4096> words{};
  return words;
}

}  // namespace

void skipdec::runtime::keep_error(const char* words) noexcept {
  std::array<char, 4096>& kept = last_error();
  std::size_t length = strnlen(words, kept.size() - 1);
  while (length > 0 && !begins_character(words[length])) --length;
  std::memcpy(kept.data(), words, length);
  kept.at(length) = 0;
  const std::string_view text(kept.data(), length);
  std::size_t valid = 0;
  while ((valid += valid_utf8_length(text.substr(valid))) < length) kept.at(valid++) = '?';
}

uint32_t skipdec_abi_version(void) { return SKIPDEC_ABI_VERSION; }

const char* skipdec_version(void) { return SKIPDEC_VERSION; }

const char* skipdec_last_error(void) { return last_error().data(); }

const char* skipdec_status_name(skipdec_status status) {
  static constexpr std::array kNames{"ok",          "usage",    "bundle", "schedule", "capacity",
                                     "environment", "closed",   "engine", "memory",   "busy",
                                     "timeout",     "internal", "end"};
  const auto index = static_cast<std::size_t>(status);
  return index < kNames.size() ? kNames[index] : "unknown";
}
