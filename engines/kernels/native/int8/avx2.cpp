// Products on AVX2: codes and weights are widened to 16 bits, and vpmaddwd adds their products
// exactly; sums of 8-bit products would saturate.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "int8/integer_product.h"
#include "int8/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#include "simd/bytes_avx2.inc.h"
#include "simd/vector_avx2.inc.h"

namespace skipdec {
namespace {

constexpr std::int64_t kCodeBytes = 2;
constexpr int kMaximumRows = 4;

constexpr int blocks_at_once(int) { return 1; }

// Four codes along the depth: ``even`` has the first and third, ``odd`` the others.
struct Codes {
  __m256i even, odd;
  static Codes load(const std::uint8_t* from) {
    return {_mm256_set1_epi32(load_word(from)), _mm256_set1_epi32(load_word(from + 4))};
  }
};

struct Weights {
  struct Half {  // 8 columns
    __m256i even, odd;
    static Half load(const std::int8_t* from) {
      const __m256i bytes = load_lanes(from);
      return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
    }
  };
  Half low, high;
  static Weights load(const std::int8_t* from) { return {Half::load(from), Half::load(from + 32)}; }
};

struct Sums {
  __m256i low, high;  // of 8 columns each
  static Sums zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  void add(const Codes& codes, const Weights& weights) {
    low = added(low, codes, weights.low);
    high = added(high, codes, weights.high);
  }
  static __m256i added(__m256i sums, const Codes& codes, const Weights::Half& weights) {
    const __m256i even = _mm256_madd_epi16(codes.even, weights.even);
    return _mm256_add_epi32(_mm256_add_epi32(sums, even),
                            _mm256_madd_epi16(codes.odd, weights.odd));
  }
  void add(const Sums& other) {
    low = _mm256_add_epi32(low, other.low);
    high = _mm256_add_epi32(high, other.high);
  }
  Vector less(const std::int32_t* offset) const {
    return {_mm256_cvtepi32_ps(_mm256_sub_epi32(low, load_lanes(offset))),
            _mm256_cvtepi32_ps(_mm256_sub_epi32(high, load_lanes(offset + 8)))};
  }
};

void store_codes(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
  for (std::int64_t k = 0; k < kDepthMultiple; k += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k));
    const __m128i even = _mm_and_si128(bytes, _mm_set1_epi16(0xff));
    const __m128i odd = _mm_srli_epi16(bytes, 8);
    auto* wide = reinterpret_cast<__m128i*>(to + k * kCodeBytes);
    _mm_storeu_si128(wide, _mm_unpacklo_epi32(even, odd));
    _mm_storeu_si128(wide + 1, _mm_unpackhi_epi32(even, odd));
  }
}

}  // namespace
}  // namespace skipdec

#include "int8/row_kernels.inc.h"

namespace skipdec {
const IntegerKernels& avx2_integer_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
