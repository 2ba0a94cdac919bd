// skipdec-fuzz CORPUS COUNT SEED [NAME…]: runs COUNT inputs for each parser, or for the named ones.
// skipdec-fuzz FILE NAME: repeats one input. The input of a crash is in ./NAME.input.
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

#include "mutations.h"

#define FUZZED(name) extern "C" int name(const std::uint8_t* data, std::size_t size);
#include "fuzzed.inc"
#undef FUZZED

namespace {

using skipdec::fuzzing::below;
using skipdec::fuzzing::kLiveBytes;
using skipdec::fuzzing::mutated;
using skipdec::fuzzing::Random;

std::atomic<std::size_t> live_bytes{0};
std::atomic<std::size_t> bound{SIZE_MAX};  // upper limit of live_bytes

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

// Keeps the current input in a file, which remains after a crash.
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

// Reads the files of the folder with the parser's name, or all of the corpus if it is missing.
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

// Exits unless memory is unchanged: a second call must not retain more than the first.
void parse(const Parser& parser, const std::string& input) {
  // The copy has exactly this size, so that sanitizers detect reading beyond its end.
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
