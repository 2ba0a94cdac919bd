// Products on AVX2: vpmaddubsw adds two products of a weight's code, 0 … 15, or its magnitude of 8
// bits, and an activation's code.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "blocks/block_product.h"
#include "blocks/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace skipdec {
namespace {
constexpr int kZeroByte = 0;
}
}  // namespace skipdec

// clang-format off: order matters
#include "simd/bytes_avx2.inc.h"
#include "simd/vector_avx2.inc.h"
#include "blocks/codes_avx2.inc.h"
// clang-format on

namespace skipdec {
namespace {

struct Sums {
  __m256i low, high;  // of 8 columns each
  static Sums start(std::int32_t value) {
    return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
  }
  // The total of eight sums of two products is at most 8 · 2 · 15 · 128 = 30,720, which fits into
  // 16 bits.
  void add(const Codes<4>& codes, const std::int8_t* row) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i words_low = _mm256_setzero_si256(), words_high = _mm256_setzero_si256();
    for (int i = 0; i < kVectors; ++i) {
      const __m256i four = _mm256_set1_epi32(load_word(row + 4 * i));
      words_low = _mm256_add_epi16(words_low, _mm256_maddubs_epi16(codes.low[i], four));
      words_high = _mm256_add_epi16(words_high, _mm256_maddubs_epi16(codes.high[i], four));
    }
    low = _mm256_add_epi32(low, _mm256_madd_epi16(words_low, ones));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(words_high, ones));
  }
  void add(const Codes<8>& codes, const std::int8_t* row) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < kVectors; ++i) {
      const __m256i four = _mm256_set1_epi32(load_word(row + 4 * i));
      const __m256i words_low = products_of_two(four, codes.low[i], _mm256_abs_epi8(codes.low[i]));
      const __m256i words_high =
          products_of_two(four, codes.high[i], _mm256_abs_epi8(codes.high[i]));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(words_low, ones));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(words_high, ones));
    }
  }
  Vector as_floats() const { return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)}; }
};

}  // namespace
}  // namespace skipdec

#include "blocks/multiply.inc.h"
#include "blocks/row_by_row.inc.h"

namespace skipdec {
const BlockKernels& avx2_block_kernels(int bits) { return kernels_of(bits); }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
