// Sizes of scratch memory that kernels and their callers must agree on.
#pragma once

#include <cstdint>

namespace skipdec::attention {

constexpr std::int64_t kLongestSpan = 64;        // queries
constexpr std::int64_t kValueTileFloats = 4096;  // 16 KiB, half of a first-level cache
constexpr std::int64_t kFewestForBlock = 4;      // queries from which tiles pay

// Floats between the scores of two queries over ``length`` rows: a line more than needed, lest a
// power of two puts all queries into the same set of the cache.
constexpr std::int64_t score_stride(std::int64_t length) { return (length + 15) / 16 * 16 + 16; }

}  // namespace skipdec::attention
