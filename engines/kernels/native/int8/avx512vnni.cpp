// Products on AVX-512 VNNI: vpdpbusd adds four 8-bit products to each of 16 sums.
#if defined(__x86_64__)
#define SKIPDEC_AVX512VNNI

#include "int8/integer_product.h"
#include "int8/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr int kMaximumRows = 12;
constexpr int kLanes = 16;

// With one or two rows, memory bandwidth is the bottleneck, and single blocks stream best. With
// more rows, the bottleneck is loading their codes, which blocks share. Measured on Zen 4, where
// four blocks at once take 2 to 10 % longer for two rows.
constexpr int columns_at_once(int rows) { return rows <= 2 ? 16 : rows <= 6 ? 64 : 32; }

// Zen 5 loads twice as many codes per cycle, and reads one stream faster than several. Speeds
// relative to reading alone, on one thread, weights from memory: 2 rows 0.91 → 0.96, 4 rows 0.74 →
// 0.95, 8 rows 0.80 → 0.95; more rows were slower.
constexpr int kStreamRows = 8;

struct Codes {
  __m512i lanes;
  static Codes load(const std::uint8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return {_mm512_set1_epi32(four)};
  }
};

struct Weights {
  __m512i lanes;
  static Weights load(const std::int8_t* from) { return {_mm512_loadu_si512(from)}; }
};

struct Sums {
  __m512i lanes;
  static Sums zero() { return {_mm512_setzero_si512()}; }
  void add(const Codes& codes, const Weights& weights) {
    // Not the intrinsic, for which g++ 12 copies sums from register to register.
    __m512i sums = lanes;
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes.lanes), "v"(weights.lanes));
    lanes = sums;
  }
  void add(const Sums& other) { lanes = _mm512_add_epi32(lanes, other.lanes); }
};

struct BlockSums {
  Sums parts[1];
  Vector less(const std::int32_t* offset) const {
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32(parts[0].lanes, _mm512_loadu_si512(offset)))};
  }
};

void store_codes(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
  std::memcpy(to, codes, sizeof codes);
}

}  // namespace
}  // namespace skipdec

#include "int8/row_kernels.inc.h"

namespace skipdec {
const IntegerKernels& SKIPDEC_NAMED(integer_kernels)() {
  return reads_streams(Zen::k5) ? kKernels<kStreamRows> : kKernels<>;
}
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
