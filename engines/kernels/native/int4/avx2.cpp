// Products on AVX2: vpmaddubsw adds two products of a weight's code, 0 … 15, and an activation's
// code.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "int4/block_product.h"
#include "int4/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

// clang-format off: order matters
#include "simd/bytes_avx2.inc.h"
#include "simd/vector_avx2.inc.h"
#include "int4/codes_avx2.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr int kGroup = 4;

struct Sums {
  __m256i low, high;  // of 8 columns each
  static Sums start(std::int32_t value) {
    return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
  }
  // The total of eight sums of two products is at most 8 · 2 · 15 · 128 = 30,720, which fits into
  // 16 bits.
  void add(const Codes& codes, const std::int8_t* row) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i words_low = _mm256_setzero_si256(), words_high = _mm256_setzero_si256();
    for (int i = 0; i < Codes::kVectors; ++i) {
      const __m256i four = _mm256_set1_epi32(load_word(row + 4 * i));
      words_low = _mm256_add_epi16(words_low, _mm256_maddubs_epi16(codes.low[i], four));
      words_high = _mm256_add_epi16(words_high, _mm256_maddubs_epi16(codes.high[i], four));
    }
    low = _mm256_add_epi32(low, _mm256_madd_epi16(words_low, ones));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(words_high, ones));
  }
  Vector as_floats() const { return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)}; }
};

}  // namespace
}  // namespace skipdec

#include "int4/multiply.inc.h"
#include "int4/row_by_row.inc.h"

namespace skipdec {
const BlockKernels& avx2_block_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
