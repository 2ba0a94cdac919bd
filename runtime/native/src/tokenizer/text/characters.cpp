#include "tokenizer/text/characters.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

#include "tokenizer/text/utf8.h"

namespace skipdec::runtime {
namespace {

struct Run {
  char32_t first;
  std::uint8_t classes;
};

constexpr Run kRuns[] = {
#include "tokenizer/text/tables/character_classes.inc"
};

constexpr std::array<std::uint8_t, 128> ascii_classes() {
  std::array<std::uint8_t, 128> classes{};
  std::size_t run = 0;
  for (std::size_t character = 0; character < classes.size(); ++character) {
    while (kRuns[run + 1].first <= character) ++run;
    classes[character] = kRuns[run].classes;
  }
  return classes;
}

constexpr std::array<std::uint8_t, 128> kAsciiClasses = ascii_classes();

char32_t continuation(std::string_view text, std::size_t at) {
  return static_cast<std::uint8_t>(text[at]) & 0x3FU;
}

}  // namespace

std::uint8_t classes_of(char32_t character) {
  if (character < kAsciiClasses.size()) return kAsciiClasses[character];
  const Run* after =
      std::upper_bound(std::begin(kRuns), std::end(kRuns), character,
                       [](char32_t value, const Run& run) { return value < run.first; });
  return std::prev(after)->classes;
}

char32_t next_character(std::string_view text, std::size_t& at) {
  const char32_t first = static_cast<std::uint8_t>(text[at++]);
  if (first < 0x80) return first;
  char32_t character = continuation(text, at++);
  if (first < 0xE0) return ((first & 0x1FU) << 6U) | character;
  character = (character << 6U) | continuation(text, at++);
  if (first < 0xF0) return ((first & 0x0FU) << 12U) | character;
  character = (character << 6U) | continuation(text, at++);
  return ((first & 0x07U) << 18U) | character;
}

void append_character(char32_t character, std::string& text) {
  const auto add = [&text](char32_t bits) { text += static_cast<char>(bits); };
  if (character < 0x80) {
    add(character);
    return;
  }
  if (character < 0x800) {
    add(0xC0U | (character >> 6U));
  } else {
    if (character < 0x10000) {
      add(0xE0U | (character >> 12U));
    } else {
      add(0xF0U | (character >> 18U));
      add(0x80U | ((character >> 12U) & 0x3FU));
    }
    add(0x80U | ((character >> 6U) & 0x3FU));
  }
  add(0x80U | (character & 0x3FU));
}

std::size_t start_of_last_character(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (!begins_character(text[end]));
  return end;
}

}  // namespace skipdec::runtime
