// Products on AVX2: vpmaddubsw adds two products of a code of a weight, 0 … 15, and one of an
// activation.
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

#include "simd/vector_avx2.inc.h"

namespace skipdec {
namespace {

constexpr int kGroup = 4;

inline __m256i load_lanes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

inline std::int32_t load_word(const std::int8_t* from) {
  std::int32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

struct Codes {
  static constexpr int kVectors = 8;
  __m256i low[kVectors], high[kVectors];  // inputs 4·i … 4·i + 3 of 8 columns each
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    unpack(from, codes.low);
    unpack(from + 32, codes.high);
    return codes;
  }
  static void unpack(const std::uint8_t* from, __m256i (&vectors)[kVectors]) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int i = 0; i < kVectors; i += 2) {
      const __m256i both = load_lanes(from + 32 * i);
      vectors[i] = _mm256_and_si256(both, mask);
      vectors[i + 1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    }
  }
};

struct Sums {
  __m256i low, high;  // of 8 columns each
  static Sums start(std::int32_t value) {
    return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
  }
  // Eight sums of two products are at most 8 · 2 · 15 · 128 = 30,720: they fit into 16 bits.
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

#include "blocks/multiply.inc.h"

namespace skipdec {
const BlockKernels& avx2_block_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
