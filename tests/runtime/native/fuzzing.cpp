// skipdec-fuzz CORPUS COUNT SEED [NAME…]: COUNT inputs for each parser, or for those named.
// skipdec-fuzz FILE NAME: one input again. The input of a crash lies in ./NAME.input.
#include "fuzzing.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define FUZZED(name) extern "C" int name(const std::uint8_t* data, std::size_t size);
#include "fuzzed.inc"
#undef FUZZED

namespace {

using skipdec::fuzzing::kInputBytes;
using skipdec::fuzzing::kLiveBytes;

std::atomic<std::size_t> live_bytes{0};
std::atomic<std::size_t> bound{SIZE_MAX};  // of live_bytes

void* allocate(std::size_t size) {
  void* memory = size > bound ? nullptr : std::malloc(size);
  if (memory == nullptr ||
      (live_bytes += malloc_usable_size(memory)) > bound.load(std::memory_order_relaxed)) {
    std::fprintf(stderr, "fuzzing: more memory than one input may take: %zu bytes at once\n", size);
    std::abort();
  }
  return memory;
}

void release(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

namespace {

constexpr std::string_view kPrefix = "fuzz_";

struct Parser {
  std::string_view name;
  int (*parse)(const std::uint8_t*, std::size_t);
};

constexpr Parser kParsers[] = {
#define FUZZED(name) {#name, name},
#include "fuzzed.inc"
#undef FUZZED
    {"", nullptr},
};

// What breaks readers of JSON: values first, then what is none.
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

std::size_t below(Random& random, std::size_t count) { return count == 0 ? 0 : random() % count; }

bool is_word(char symbol) { return symbol != 0 && std::strchr("+-.0123456789aeflnrstuE", symbol); }

// Where what begins at ``begin`` ends: a string, an array or object with all that is in it, a word.
std::size_t end_of_value(const std::string& text, std::size_t begin) {
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

// A random one of the values, arrays, objects and names of fields.
Span find_value(const std::string& text, Random& random) {
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

std::size_t skip_spaces(const std::string& text, std::size_t place) {
  while (place < text.size() && std::strchr(" \n", text[place]) != nullptr) ++place;
  return place;
}

bool holds(const std::string& text, std::size_t place, char symbol) {
  return place < text.size() && text[place] == symbol;
}

// What stays JSON, mostly.
void replace_value(std::string& text, const std::string& other, Random& random) {
  Span old = find_value(text, random);
  const std::size_t behind = skip_spaces(text, old.begin + old.size);
  const bool is_name = holds(text, behind, ':');
  std::string value{kValues[below(random, kWholeValues)]};
  if (below(random, 3) == 0) {
    const Span found = find_value(other, random);
    value = other.substr(found.begin, found.size);
  }
  if (is_name && value[0] != '"') value = "\"a\"";
  if (is_name && below(random, 2) == 0) {  // the whole field
    old.size = end_of_value(text, skip_spaces(text, behind + 1)) - old.begin;
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

// What knows bytes only.
void replace_bytes(std::string& text, const std::string& other, Random& random) {
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

// Three of four inputs keep to the grammar.
std::string mutated(std::string text, const std::string& other, Random& random) {
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

// A file that outlives a crash.
class LastInput {
 public:
  explicit LastInput(std::string path)
      : path_(std::move(path)), file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644)) {}
  ~LastInput() {
    close(file_);
    unlink(path_.c_str());
  }
  LastInput(const LastInput&) = delete;
  LastInput& operator=(const LastInput&) = delete;

  void keep(const std::string& input) {
    if (pwrite(file_, input.data(), input.size(), 0) < 0 ||
        ftruncate(file_, static_cast<off_t>(input.size())) != 0) {
      std::perror(path_.c_str());
      std::exit(2);
    }
  }

 private:
  std::string path_;
  int file_;
};

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The files of the folder that is named like the parser; all files, if there is none.
std::vector<std::string> read_seeds(const std::filesystem::path& corpus, const Parser& parser) {
  const auto own = corpus / parser.name.substr(kPrefix.size());
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::filesystem::is_directory(own) ? own : corpus)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) seeds.push_back(read(path));
  if (seeds.empty()) {
    std::fprintf(stderr, "fuzzing: no files below %s\n", corpus.c_str());
    std::exit(2);
  }
  return seeds;
}

// Exits unless memory is as it was: what a first call keeps, a second one must not.
void parse(const Parser& parser, const std::string& input) {
  // a copy of exactly this size, so that reading beyond its end is seen
  const std::vector<std::uint8_t> data(input.begin(), input.end());
  for (int attempt = 0; attempt < 4; ++attempt) {
    const std::size_t before = live_bytes;
    bound = before + kLiveBytes;
    alarm(skipdec::fuzzing::kSeconds);
    parser.parse(data.data(), data.size());
    bound = SIZE_MAX;
    if (live_bytes <= before) return;
  }
  std::fprintf(stderr, "fuzzing: %s leaks\n", std::string(parser.name).c_str());
  std::abort();
}

void attack(const Parser& parser, const std::filesystem::path& corpus, std::size_t count,
            std::uint64_t seed) {
  const std::vector<std::string> seeds = read_seeds(corpus, parser);
  LastInput last(std::string(parser.name) + ".input");
  for (const std::string& input : seeds) {
    last.keep(input);
    parse(parser, input);
  }
  for (std::size_t index = 0; index < count; ++index) {
    Random random(seed + index);
    const std::string& seed_text = seeds[below(random, seeds.size())];
    const std::string input = mutated(seed_text, seeds[below(random, seeds.size())], random);
    last.keep(input);
    parse(parser, input);
  }
  std::printf("fuzzing: %s took %zu inputs\n", std::string(parser.name).c_str(), count);
  std::fflush(stdout);
}

bool is_named(const Parser& parser, int count, char** names) {
  return count == 0 || std::find(names, names + count, parser.name) != names + count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    const std::string input = read(argv[1]);
    for (const Parser& parser : kParsers)
      if (parser.name == argv[2] && parser.parse != nullptr) return parse(parser, input), 0;
  }
  if (argc < 4) {
    std::fputs("usage: skipdec-fuzz CORPUS COUNT SEED [NAME...] | skipdec-fuzz FILE NAME\n",
               stderr);
    return 2;
  }
  const std::size_t count = std::strtoull(argv[2], nullptr, 10);
  const std::uint64_t seed = std::strtoull(argv[3], nullptr, 10);
  for (const Parser& parser : kParsers)
    if (parser.parse != nullptr && is_named(parser, argc - 4, argv + 4))
      attack(parser, argv[1], count, seed);
  return 0;
}
