// Mutates texts into inputs for fuzz targets.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fuzzing.h"

namespace skipdec::fuzzing {

// Fragments that break readers of JSON: values first, then invalid JSON.
constexpr std::string_view kValues[] = {
    "0",
    "-1",
    "1",
    "-0.0",
    "0.5",
    "2147483648",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1e308",
    "1e-999",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\"..\"",
    "\"../../../etc/passwd\"",
    "\"/dev/zero\"",
    "\"\\u0000\"",
    "1e999",
    "NaN",
    "Infinity",
    "\"\\ud800\"",
    "\"\xff\xc0\xaf\"",
    "[[[[[[[[",
    "{\"\":{\"\":{\"\":",
};
constexpr std::size_t kWholeValues = 22;

using Random = std::mt19937_64;

inline std::size_t below(Random& random, std::size_t count) {
  return count == 0 ? 0 : random() % count;
}

inline bool is_word(char symbol) {
  return symbol != 0 && std::strchr("+-.0123456789aeflnrstuE", symbol);
}

// Returns the end of the value at ``begin``: a string, an array or object with its contents, or a
// word.
inline std::size_t end_of_value(const std::string& text, std::size_t begin) {
  std::size_t depth = 0;
  for (std::size_t place = begin; place < text.size(); ++place) {
    const char symbol = text[place];
    if (symbol == '"') {
      place = text.find('"', place + 1);
      if (place == std::string::npos) break;
    } else if (symbol == '[' || symbol == '{') {
      ++depth;
    } else if (symbol == ']' || symbol == '}') {
      --depth;
    } else if (depth == 0) {
      const std::size_t word = place;
      while (place < text.size() && is_word(text[place])) ++place;
      return std::max(place, word + 1);
    }
    if (depth == 0) return place + 1;
  }
  return text.size();
}

struct Span {
  std::size_t begin = 0, size = 0;
};

// Returns a random value, array, object or field name.
inline Span find_value(const std::string& text, Random& random) {
  std::vector<std::size_t> begins;
  for (std::size_t place = 0; place < text.size(); ++place) {
    if (std::strchr(" \n:,]}", text[place]) != nullptr) continue;
    begins.push_back(place);
    if (text[place] != '[' && text[place] != '{') place = end_of_value(text, place);
  }
  if (begins.empty()) return {};
  const std::size_t begin = begins[below(random, begins.size())];
  return {begin, end_of_value(text, begin) - begin};
}

inline std::size_t skip_spaces(const std::string& text, std::size_t place) {
  while (place < text.size() && std::strchr(" \n", text[place]) != nullptr) ++place;
  return place;
}

inline bool holds(const std::string& text, std::size_t place, char symbol) {
  return place < text.size() && text[place] == symbol;
}

// Replaces, repeats or removes a value; mostly keeps the text valid JSON.
inline void replace_value(std::string& text, const std::string& other, Random& random) {
  Span old = find_value(text, random);
  const std::size_t after = skip_spaces(text, old.begin + old.size);
  const bool is_name = holds(text, after, ':');
  std::string value{kValues[below(random, kWholeValues)]};
  if (below(random, 3) == 0) {
    const Span found = find_value(other, random);
    value = other.substr(found.begin, found.size);
  }
  if (is_name && value[0] != '"') value = "\"a\"";
  if (is_name && below(random, 2) == 0) {  // the whole field
    old.size = end_of_value(text, skip_spaces(text, after + 1)) - old.begin;
  } else if (below(random, 4) != 0) {
    text.replace(old.begin, old.size, value);
    return;
  }
  if (below(random, 2) == 0) {
    text.insert(old.begin, text.substr(old.begin, old.size) + ",");
  } else {
    const bool has_comma = holds(text, skip_spaces(text, old.begin + old.size), ',');
    text.erase(old.begin, old.size + (has_comma ? 1 : 0));
  }
}

// Mutations of bytes.
inline void replace_bytes(std::string& text, const std::string& other, Random& random) {
  const std::size_t place = below(random, text.size() + 1);
  const std::size_t length = std::min(text.size() - place, std::size_t{1} << below(random, 12));
  switch (below(random, 7)) {
    case 0:
      if (place < text.size()) text[place] = static_cast<char>(text[place] ^ 1 << below(random, 8));
      break;
    case 1:
      if (place < text.size()) text[place] = static_cast<char>(random());
      break;
    case 2:
      text.erase(place, length);
      break;
    case 3:
      text.insert(place, text.substr(below(random, text.size()), length));
      break;
    case 4: {
      const std::size_t from = below(random, other.size());
      text.replace(place, length, other.substr(from, std::size_t{1} << below(random, 12)));
      break;
    }
    case 5:
      if (below(random, 8) == 0) {
        text.insert(place, std::string(std::size_t{1} << below(random, 18), "[{\"9 a"[place % 6]));
      }
      break;
    default:
      text.insert(place, kValues[below(random, std::size(kValues))]);
  }
}

// Returns ``text`` after some changes, with pieces of ``other``; three of four results are valid
// JSON.
inline std::string mutated(std::string text, const std::string& other, Random& random) {
  const bool keeps_values = below(random, 4) != 0;
  for (std::size_t left = 1 + below(random, 3); left > 0; --left) {
    if (keeps_values) {
      replace_value(text, other, random);
    } else {
      replace_bytes(text, other, random);
    }
  }
  if (text.size() > kInputBytes) text.resize(kInputBytes);
  return text;
}

}  // namespace skipdec::fuzzing
