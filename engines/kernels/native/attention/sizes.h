// Sizes of scratch memory on which kernels and their callers must agree.
#pragma once

#include <cstdint>

namespace skipdec::attention {

constexpr std::int64_t kLongestSpan = 64;        // maximum queries of a span
constexpr std::int64_t kValueTileFloats = 4096;  // 16 KiB, half of an L1 cache
constexpr std::int64_t kFewestForBlock = 4;      // number of queries from which tiles are faster

// Returns the number of floats between the scores of two queries over ``length`` rows: one cache
// line more than needed, so that a power of two does not map all queries to the same cache set.
constexpr std::int64_t score_stride(std::int64_t length) { return (length + 15) / 16 * 16 + 16; }

}  // namespace skipdec::attention
