// Products on AVX-VNNI: vpdpbusd adds four 8-bit products to each of 8 sums.
#if defined(__x86_64__)
#define SKIPDEC_AVXVNNI

#include "int8/integer_product.h"
#include "int8/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/byte_products.inc.h"
#include "simd/bytes_avx2.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr int kMaximumRows = 6;
constexpr int kLanes = 8;

constexpr int columns_at_once(int) { return 16; }

struct Codes {
  __m256i lanes;
  static Codes load(const std::uint8_t* from) { return {_mm256_set1_epi32(load_word(from))}; }
};

struct Weights {
  __m256i lanes;
  static Weights load(const std::int8_t* from) { return {load_lanes(from)}; }
};

struct Sums {
  __m256i lanes;
  static Sums zero() { return {_mm256_setzero_si256()}; }
  void add(const Codes& codes, const Weights& weights) {
    lanes = add_byte_products(lanes, codes.lanes, weights.lanes);
  }
  void add(const Sums& other) { lanes = _mm256_add_epi32(lanes, other.lanes); }
  __m256 less(const std::int32_t* offset) const {
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(lanes, load_lanes(offset)));
  }
};

struct BlockSums {
  Sums parts[2];
  Vector less(const std::int32_t* offset) const {
    return {parts[0].less(offset), parts[1].less(offset + kLanes)};
  }
};

void store_codes(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
  std::memcpy(to, codes, sizeof codes);
}

}  // namespace
}  // namespace skipdec

#include "int8/row_kernels.inc.h"

namespace skipdec {
const IntegerKernels& SKIPDEC_NAMED(integer_kernels)() { return kKernels<>; }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
