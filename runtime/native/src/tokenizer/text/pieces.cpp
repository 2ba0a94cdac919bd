#include "tokenizer/text/pieces.h"

#include <array>
#include <cstdint>
#include <string_view>

#include "tokenizer/text/characters.h"

namespace skipdec::runtime {
namespace {

constexpr std::uint8_t kKinds = kLetter | kNumber | kSpace;
constexpr std::array<std::string_view, 7> kContractions = {"'s", "'t",  "'re", "'ve",
                                                           "'m", "'ll", "'d"};

std::uint8_t kind_at(std::string_view text, std::size_t at) {
  return classes_of(next_character(text, at)) & kKinds;
}

// Returns the end of the run of characters of `kind` from `at` on.
std::size_t end_of_run(std::string_view text, std::size_t at, std::uint8_t kind) {
  while (at < text.size()) {
    std::size_t behind = at;
    if ((classes_of(next_character(text, behind)) & kKinds) != kind) break;
    at = behind;
  }
  return at;
}

// Returns the end of a run of spaces without its last one, which the following piece may include,
// unless there is only one or the text ends.
std::size_t end_of_spaces(std::string_view text, std::size_t start) {
  const std::size_t end = end_of_run(text, start, kSpace);
  if (end == text.size()) return end;
  const std::size_t last = start_of_last_character(text, end);
  return last > start ? last : end;
}

}  // namespace

std::size_t end_of_piece(std::string_view text, std::size_t start) {
  if (text[start] == '\'')
    for (const std::string_view contraction : kContractions)
      if (text.substr(start, contraction.size()) == contraction) return start + contraction.size();
  const bool after_blank = text[start] == ' ' && start + 1 < text.size();
  const std::size_t word = after_blank ? start + 1 : start;
  const std::uint8_t kind = kind_at(text, word);
  if (kind == kSpace) return end_of_spaces(text, start);
  return end_of_run(text, word, kind);
}

}  // namespace skipdec::runtime
