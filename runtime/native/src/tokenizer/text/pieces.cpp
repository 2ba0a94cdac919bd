#include "tokenizer/text/pieces.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/text/characters.h"

namespace skipdec::runtime {
namespace {

constexpr std::uint8_t kKinds = kLetter | kNumber | kSpace;
constexpr std::array<std::string_view, 7> kContractions = {"'s", "'t",  "'re", "'ve",
                                                           "'m", "'ll", "'d"};
constexpr std::size_t kNoLimit = SIZE_MAX;

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::uint8_t kind_at(std::string_view text, std::size_t at) {
  return classes_of(next_character(text, at)) & kKinds;
}

bool is_line_end(char byte) { return byte == '\n' || byte == '\r'; }

// Returns the end of the run of characters from `at` on whose classes in ``mask`` are `kind`, at
// most ``most`` characters.
std::size_t end_of_run(std::string_view text, std::size_t at, std::uint8_t kind,
                       std::uint8_t mask = kKinds, std::size_t most = kNoLimit) {
  for (std::size_t count = 0; at < text.size() && count < most; ++count) {
    std::size_t behind = at;
    if ((classes_of(next_character(text, behind)) & mask) != kind) break;
    at = behind;
  }
  return at;
}

std::size_t end_of_line_ends(std::string_view text, std::size_t at) {
  while (at < text.size() && is_line_end(text[at])) ++at;
  return at;
}

// Returns the end of the run of spaces text[start, end) without its last space, which the next
// piece may include, unless there is only one space or the text ends.
std::size_t end_of_spaces(std::string_view text, std::size_t start, std::size_t end) {
  if (end == text.size()) return end;
  const std::size_t last = start_of_last_character(text, end);
  return last > start ? last : end;
}

// Returns a character in lower case, if contractions contain it.
char32_t lower(char32_t character) {
  if (character >= 'A' && character <= 'Z') return character - 'A' + 'a';
  return character == U'\u017F' ? U's' : character;  // the long s, which folds to s
}

// Returns the end of a contraction at `start`; `start` if there is none.
std::size_t end_of_contraction(std::string_view text, std::size_t start, bool ignores_case) {
  if (text[start] != '\'') return start;
  for (const std::string_view contraction : kContractions) {
    std::size_t end = start;
    const bool equal = std::all_of(contraction.begin(), contraction.end(), [&](char expected) {
      if (end == text.size()) return false;
      const char32_t character = next_character(text, end);
      return (ignores_case ? lower(character) : character) == static_cast<char32_t>(expected);
    });
    if (equal) return end;
  }
  return start;
}

// The expressions of Llama 3 and Qwen 2 differ only in the number of digits per piece.
std::size_t end_of_llama3_piece(std::string_view text, std::size_t start, std::size_t most_digits) {
  if (const std::size_t end = end_of_contraction(text, start, true); end > start) return end;
  std::size_t behind = start;
  const std::uint8_t kind = classes_of(next_character(text, behind)) & kKinds;
  if (kind == kLetter) return end_of_run(text, behind, kLetter);
  if (kind == kNumber) return end_of_run(text, start, kNumber, kKinds, most_digits);
  const std::uint8_t next = behind < text.size() ? kind_at(text, behind) : std::uint8_t{kSpace};
  if (next == kLetter && !is_line_end(text[start])) return end_of_run(text, behind, kLetter);
  if (kind == 0 || (text[start] == ' ' && next == 0))
    return end_of_line_ends(text, end_of_run(text, behind, 0));
  const std::size_t end = end_of_run(text, start, kSpace);
  const std::size_t last = text.substr(start, end - start).find_last_of("\r\n");
  return last == std::string_view::npos ? end_of_spaces(text, start, end) : start + last + 1;
}

}  // namespace

Scanner scanner_of(std::string_view expression) {
  const auto of_llama3 = [](std::size_t most_digits) {
    return [most_digits](std::string_view text, std::size_t start) {
      return end_of_llama3_piece(text, start, most_digits);
    };
  };
  if (expression == kGpt2) return end_of_gpt2_piece;
  if (expression == kLlama3) return of_llama3(3);
  if (expression == kQwen2) return of_llama3(1);
  return nullptr;
}

std::size_t end_of_gpt2_piece(std::string_view text, std::size_t start) {
  if (const std::size_t end = end_of_contraction(text, start, false); end > start) return end;
  const bool after_blank = text[start] == ' ' && start + 1 < text.size();
  const std::size_t word = after_blank ? start + 1 : start;
  const std::uint8_t kind = kind_at(text, word);
  const std::size_t end = end_of_run(text, word, kind);
  return kind == kSpace ? end_of_spaces(text, start, end) : end;
}

std::size_t end_of_single_digits(std::string_view text, std::size_t start) {
  std::size_t behind = start;
  const bool is_digit = (classes_of(next_character(text, behind)) & kDigit) != 0;
  return is_digit ? behind : end_of_run(text, behind, 0, kDigit);
}

std::size_t end_of_digits(std::string_view text, std::size_t start) {
  std::size_t behind = start;
  return end_of_run(text, start, classes_of(next_character(text, behind)) & kDigit, kDigit);
}

Scanner scanner_before(std::string_view blank) {
  return [blank = std::string(blank)](std::string_view text, std::size_t start) {
    const bool at_blank = text.substr(start, blank.size()) == blank;
    return std::min(text.find(blank, start + (at_blank ? blank.size() : 0)), text.size());
  };
}

}  // namespace skipdec::runtime
