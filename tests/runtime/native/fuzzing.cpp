// skipdec-fuzz CORPUS COUNT SEED [NAME…]: COUNT inputs for each parser, or for those named.
// skipdec-fuzz FILE NAME: one input again. The input of a crash lies in ./fuzzing.input.
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

// What breaks readers of JSON.
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
    "1e999",
    "1e-999",
    "NaN",
    "Infinity",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "\"..\"",
    "\"../../../etc/passwd\"",
    "\"/dev/zero\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\xff\xc0\xaf\"",
    "[[[[[[[[",
    "{\"\":{\"\":{\"\":",
};

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t count) { return count == 0 ? 0 : random() % count; }

bool is_word(char symbol) { return symbol != 0 && std::strchr("+-.0123456789aeflnrstuE", symbol); }

// Where the number, word or string at or behind a random place begins and ends.
std::pair<std::size_t, std::size_t> find_value(const std::string& text, Random& random) {
  std::size_t begin = below(random, text.size());
  while (begin < text.size() && text[begin] != '"' && !is_word(text[begin])) ++begin;
  std::size_t end = begin;
  if (end < text.size() && text[end] == '"') {
    end = text.find('"', end + 1);
    end = end == std::string::npos ? text.size() : end + 1;
  } else {
    while (end < text.size() && is_word(text[end])) ++end;
  }
  return {begin, end};
}

void mutate(std::string& text, const std::string& other, Random& random) {
  const std::size_t place = below(random, text.size() + 1);
  const std::size_t length = std::min(text.size() - place, std::size_t{1} << below(random, 12));
  switch (below(random, 10)) {
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
      if (below(random, 8) == 0) text.resize(place);
      break;
    case 6: {  // a value, or the name of a field, of this text or another for one of this
      const auto [from, to] = find_value(other, random);
      const auto [begin, end] = find_value(text, random);
      text.replace(begin, end - begin, other.substr(from, to - from));
      break;
    }
    case 7:
      if (below(random, 16) == 0) {
        text.insert(place, std::string(std::size_t{1} << below(random, 18), "[{\"9 a"[place % 6]));
      }
      break;
    default: {
      const auto [begin, end] = find_value(text, random);
      text.replace(begin, end - begin, kValues[below(random, std::size(kValues))]);
    }
  }
  if (text.size() > kInputBytes) text.resize(kInputBytes);
}

// A file that outlives a crash.
class LastInput {
 public:
  LastInput() : file_(open(kPath, O_WRONLY | O_CREAT | O_TRUNC, 0644)) {}
  ~LastInput() {
    close(file_);
    unlink(kPath);
  }
  LastInput(const LastInput&) = delete;
  LastInput& operator=(const LastInput&) = delete;

  void keep(const std::string& input) {
    if (pwrite(file_, input.data(), input.size(), 0) < 0 ||
        ftruncate(file_, static_cast<off_t>(input.size())) != 0) {
      std::perror(kPath);
      std::exit(2);
    }
  }

 private:
  static constexpr const char* kPath = "fuzzing.input";
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
  LastInput last;
  for (const std::string& input : seeds) {
    last.keep(input);
    parse(parser, input);
  }
  for (std::size_t index = 0; index < count; ++index) {
    Random random(seed + index);
    std::string input = seeds[below(random, seeds.size())];
    const std::string& other = seeds[below(random, seeds.size())];
    for (std::size_t left = 1 + below(random, 6); left > 0; --left) mutate(input, other, random);
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
