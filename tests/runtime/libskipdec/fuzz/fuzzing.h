// Fuzz targets. A file fuzz_NAME.cpp defines, like a libFuzzer target,
//
//   #include "fuzzing.h"
//   extern "C" int fuzz_NAME(const std::uint8_t* data, std::size_t size);
//
// which parses the input once and returns 0. It catches skipdec::runtime::Error and nothing else:
// any other exception, a crash, a leak, more than kLiveBytes of memory or more than
// kSeconds for one input is a bug. Inputs are mutated from the files of CORPUS/NAME, or of all of
// CORPUS if that folder is missing; scripts/libskipdec/corpus.py writes them. The function first
// repairs checksums that would reject mutated input, e.g. the manifest's own digest.
// scripts/libskipdec/fuzz.sh runs all targets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace skipdec::fuzzing {

constexpr std::size_t kInputBytes = std::size_t{1} << 20;  // maximum length of an input
constexpr std::size_t kLiveBytes = std::size_t{64} << 20;  // allocated at any time for one input
constexpr unsigned kSeconds = 20;

}  // namespace skipdec::fuzzing
