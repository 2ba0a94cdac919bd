// Parsers under attack. A file fuzz_NAME.cpp defines, as libFuzzer would have it,
//
//   #include "fuzzing.h"
//   extern "C" int fuzz_NAME(const std::uint8_t* data, std::size_t size);
//
// which parses the input once and returns 0. It catches skipdec::runtime::Error and nothing else:
// whatever else is thrown, a crash, a leak, more than kLiveBytes of memory or more than
// kSeconds for one input is a bug. Inputs are mutated from the files of CORPUS/NAME, or of all of
// CORPUS where there is no such folder; scripts/libskipdec/corpus.py writes them. What guards a parser
// from random bytes, e.g. the manifest's own digest, is made right by the function before it
// parses. scripts/libskipdec/fuzz.sh runs all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace skipdec::fuzzing {

constexpr std::size_t kInputBytes = std::size_t{1} << 20;  // the longest input
constexpr std::size_t kLiveBytes = std::size_t{64} << 20;  // at any time, of one input
constexpr unsigned kSeconds = 20;

}  // namespace skipdec::fuzzing
