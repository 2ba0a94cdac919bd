// Products on AVX2: vpmaddubsw adds two products of a weight and an activation's code. The weight
// is a 4-bit code, 0 … 15, or the magnitude of an 8-bit one.
#if defined(__x86_64__)
#define SKIPDEC_AVX2

#include "blocks/block_product.h"
#include "blocks/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/bytes_avx2.inc.h"
#include "simd/unrolled.inc.h"
#include "blocks/codes_avx2.inc.h"
// clang-format on

namespace skipdec {
namespace {

template <>
struct Codes<8> {
  static constexpr int kGroup = 4, kZeroCode = 0;
  const std::uint8_t* from;
  static Codes load(const std::uint8_t* from) { return {from}; }
  // Returns inputs 4·i … 4·i + 3 of 8 columns.
  __m256i half(int i, int half) const { return load_lanes(from + 64 * i + 32 * half); }
};

struct Sums {
  __m256i halves[2];  // of 8 columns each
  static Sums start(std::int32_t value) {
    return {{_mm256_set1_epi32(value), _mm256_set1_epi32(value)}};
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
    halves[0] = _mm256_add_epi32(halves[0], _mm256_madd_epi16(words_low, ones));
    halves[1] = _mm256_add_epi32(halves[1], _mm256_madd_epi16(words_high, ones));
  }
  Vector as_floats() const {
    return {_mm256_cvtepi32_ps(halves[0]), _mm256_cvtepi32_ps(halves[1])};
  }
};

// Multiplies half of the columns by all rows, whose sums then fit into registers.
template <int kRows, typename Fetch>
inline __attribute__((always_inline)) void add_unit(Sums (&sums)[kRows], const Codes<8>& codes,
                                                    const std::int8_t* rows, std::int64_t stride,
                                                    Fetch fetch) {
  for (int line = 0; line < kVectors; ++line) fetch(line);
  const __m256i ones = _mm256_set1_epi16(1);
  unrolled<2>([&](auto half) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto i) __attribute__((always_inline)) {
      const __m256i of_weights = codes.half(i, half), magnitudes = _mm256_abs_epi8(of_weights);
      unrolled<kRows>([&](auto row) __attribute__((always_inline)) {
        const __m256i four = _mm256_set1_epi32(load_word(rows + row * stride + 4 * i));
        const __m256i of_two = products_of_two(four, of_weights, magnitudes);
        __m256i& lanes = sums[row].halves[half];
        lanes = _mm256_add_epi32(lanes, _mm256_madd_epi16(of_two, ones));
      });
    });
  });
}

}  // namespace
}  // namespace skipdec

#include "blocks/multiply.inc.h"
#include "blocks/row_by_row.inc.h"

namespace skipdec {
const BlockKernels& SKIPDEC_NAMED(block_kernels)(int bits) { return kernels_of(bits); }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
