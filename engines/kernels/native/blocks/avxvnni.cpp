// Products on AVX-VNNI: vpdpbusd adds four 8-bit products to each of 8 sums. Its unsigned operand
// is a weight's 4-bit code, 0 … 15, or 8-bit code plus 128.
#if defined(__x86_64__)
#define SKIPDEC_AVXVNNI

#include "blocks/block_product.h"
#include "blocks/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/bytes_avx2.inc.h"
#include "simd/byte_products.inc.h"
#include "blocks/codes_avx2.inc.h"
// clang-format on

namespace skipdec {
namespace {

template <>
struct Codes<8> {
  static constexpr int kGroup = 4, kZeroCode = 128;
  __m256i low[kVectors], high[kVectors];  // inputs 4·i … 4·i + 3 of 8 columns each
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    for (int i = 0; i < kVectors; ++i) {
      codes.low[i] = moved(load_lanes(from + 64 * i));
      codes.high[i] = moved(load_lanes(from + 64 * i + 32));
    }
    return codes;
  }
  static __m256i moved(__m256i codes) { return _mm256_xor_si256(codes, _mm256_set1_epi8(-128)); }
};

struct Sums {
  __m256i low, high;  // of 8 columns each
  static Sums start(std::int32_t value) {
    return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
  }
  template <int kBits>
  void add(const Codes<kBits>& codes, const std::int8_t* row) {
    for (int i = 0; i < kVectors; ++i) {
      const __m256i four = _mm256_set1_epi32(load_word(row + 4 * i));
      low = add_byte_products(low, codes.low[i], four);
      high = add_byte_products(high, codes.high[i], four);
    }
  }
  Vector as_floats() const { return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)}; }
};

}  // namespace
}  // namespace skipdec

#include "blocks/multiply.inc.h"
#include "blocks/row_by_row.inc.h"

namespace skipdec {
const BlockKernels& SKIPDEC_NAMED(block_kernels)(int bits) { return kernels_of(bits); }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
