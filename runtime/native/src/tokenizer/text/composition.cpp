#include "tokenizer/text/composition.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/model/pair_table.h"
#include "tokenizer/text/characters.h"

namespace skipdec::runtime {
namespace {

struct Decomposition {
  char32_t composite;
  char32_t first, second;  // second: 0 for a decomposition into one character
  bool composes;
};

constexpr Decomposition kDecompositions[] = {
#include "tokenizer/text/tables/decompositions.inc"
};

struct ClassRun {
  char32_t first;
  std::uint8_t combining_class;  // kUnstable: class 0, but not a boundary
};

constexpr ClassRun kClassRuns[] = {
#include "tokenizer/text/tables/combining_classes.inc"
};

constexpr std::uint8_t kUnstable = 255;
constexpr char32_t kFirstCombining = kClassRuns[1].first;

// Hangul syllables, which are composed by arithmetic: The Unicode Standard, section 3.12.
constexpr char32_t kSyllables = 0xAC00, kConsonants = 0x1100, kVowels = 0x1161, kFinals = 0x11A7;
constexpr char32_t kNumConsonants = 19, kNumVowels = 21,
                   kNumFinals = 28;  // kNumFinals counts "none", too
constexpr char32_t kNumSyllables = kNumConsonants * kNumVowels * kNumFinals;

struct Part {
  char32_t character;
  std::uint8_t combining_class;
};
using Parts = std::vector<Part>;

// Returns a combining class, or kUnstable for a character of class 0 that NFC may change or join
// to the one before it. Text may be cut before characters for which this is 0.
std::uint8_t stability_of(char32_t character) {
  if (character < kFirstCombining) return 0;
  const ClassRun* after =
      std::upper_bound(std::begin(kClassRuns), std::end(kClassRuns), character,
                       [](char32_t value, const ClassRun& run) { return value < run.first; });
  return std::prev(after)->combining_class;
}

void decompose(char32_t character, Parts& parts) {
  if (const char32_t syllable = character - kSyllables; syllable < kNumSyllables) {
    const char32_t vowel = syllable / kNumFinals;
    parts.push_back({kConsonants + vowel / kNumVowels, 0});
    parts.push_back({kVowels + vowel % kNumVowels, 0});
    if (syllable % kNumFinals != 0) parts.push_back({kFinals + syllable % kNumFinals, 0});
    return;
  }
  const Decomposition* const found = std::lower_bound(
      std::begin(kDecompositions), std::end(kDecompositions), character,
      [](const Decomposition& step, char32_t value) { return step.composite < value; });
  if (found == std::end(kDecompositions) || found->composite != character) {
    const std::uint8_t stability = stability_of(character);
    parts.push_back({character, stability == kUnstable ? std::uint8_t{0} : stability});
    return;
  }
  decompose(found->first, parts);  // chains of four steps at most
  if (found->second != 0) decompose(found->second, parts);
}

// Sorts each run of combining marks by class; equal ones keep their order.
void order_marks(Parts& parts) {
  const auto is_mark = [](const Part& part) { return part.combining_class != 0; };
  for (auto start = parts.begin(); start != parts.end();) {
    start = std::find_if(start, parts.end(), is_mark);
    const auto end = std::find_if_not(start, parts.end(), is_mark);
    std::stable_sort(start, end, [](const Part& left, const Part& right) {
      return left.combining_class < right.combining_class;
    });
    start = end;
  }
}

bool composes_earlier(const Decomposition* left, const Decomposition* right) {
  return left->first != right->first ? left->first < right->first : left->second < right->second;
}

// Returns the decompositions that compose, sorted by their two characters.
const std::vector<const Decomposition*>& compositions() {
  static const std::vector<const Decomposition*> sorted = [] {
    std::vector<const Decomposition*> steps;
    for (const Decomposition& step : kDecompositions)
      if (step.composes) steps.push_back(&step);
    std::sort(steps.begin(), steps.end(), composes_earlier);
    return steps;
  }();
  return sorted;
}

// Returns the character that two compose; 0 if there is none.
char32_t composition_of(char32_t first, char32_t second) {
  const char32_t consonant = first - kConsonants, vowel = second - kVowels;
  if (consonant < kNumConsonants && vowel < kNumVowels)
    return kSyllables + (consonant * kNumVowels + vowel) * kNumFinals;
  const char32_t syllable = first - kSyllables, final_consonant = second - kFinals;
  if (syllable < kNumSyllables && syllable % kNumFinals == 0 &&
      final_consonant - 1 < kNumFinals - 1)
    return first + final_consonant;
  const Decomposition wanted{0, first, second, true};
  const auto found =
      std::lower_bound(compositions().begin(), compositions().end(), &wanted, composes_earlier);
  const bool exists = found != compositions().end() && !composes_earlier(&wanted, *found);
  return exists ? (*found)->composite : 0;
}

// Composes each starter with the marks after it that no mark of the same or a higher class blocks.
void compose(Parts& parts) {
  std::size_t kept = 0, starter = 0;
  bool has_starter = false;
  for (const Part part : parts) {
    const bool is_next = kept == starter + 1;
    if (has_starter && (is_next || parts[kept - 1].combining_class < part.combining_class)) {
      const char32_t whole = composition_of(parts[starter].character, part.character);
      if (whole != 0) {
        parts[starter].character = whole;
        continue;
      }
    }
    if (part.combining_class == 0) {
      starter = kept;
      has_starter = true;
    }
    parts[kept++] = part;
  }
  parts.resize(kept);
}

}  // namespace

std::string composed(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  Parts parts;
  for (std::size_t start = 0; start < text.size();) {
    std::size_t end = start;
    char32_t character = next_character(text, end);
    bool is_stable = stability_of(character) == 0;
    parts.clear();
    for (std::size_t behind = end; behind < text.size(); end = behind) {
      const char32_t next = next_character(text, behind);
      if (stability_of(next) == 0) break;
      if (parts.empty()) decompose(character, parts);
      decompose(next, parts);
      is_stable = false;
    }
    if (is_stable) {
      result += text.substr(start, end - start);
    } else {
      if (parts.empty()) decompose(character, parts);
      order_marks(parts);
      compose(parts);
      for (const Part& part : parts) append_character(part.character, result);
    }
    start = end;
  }
  return result;
}

}  // namespace skipdec::runtime
