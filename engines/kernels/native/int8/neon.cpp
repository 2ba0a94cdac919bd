// Products by NEON's dot products of signed bytes. Codes are stored minus 128, so sums need no
// offset.
#if defined(__aarch64__)
#define SKIPDEC_NEON_DOT

#include "int8/integer_product.h"
#include "int8/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr int kMaximumRows = 6;
constexpr int kLanes = 4;

constexpr int columns_at_once(int) { return 16; }

struct Codes {
  int8x16_t lanes;
  static Codes load(const std::uint8_t* from) {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return {vreinterpretq_s8_s32(vdupq_n_s32(four))};
  }
};

struct Weights {
  int8x16_t lanes;
  static Weights load(const std::int8_t* from) { return {vld1q_s8(from)}; }
};

// Returns sums plus four products of bytes in each of 4 lanes.
inline int32x4_t dot(int32x4_t sums, int8x16_t a, int8x16_t b) {
#if defined(__clang__) && __clang_major__ < 16  // its header enables it per file only
  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(a), "w"(b));
  return sums;
#else
  return vdotq_s32(sums, a, b);
#endif
}

struct Sums {
  int32x4_t lanes;
  static Sums zero() { return {vdupq_n_s32(0)}; }
  void add(const Codes& codes, const Weights& weights) {
    lanes = dot(lanes, weights.lanes, codes.lanes);
  }
  void add(const Sums& other) { lanes = vaddq_s32(lanes, other.lanes); }
};

struct BlockSums {
  Sums parts[4];
  Vector less(const std::int32_t*) const {
    Vector floats;
    for (int i = 0; i < 4; ++i) floats.quarters[i] = vcvtq_f32_s32(parts[i].lanes);
    return floats;
  }
};

void store_codes(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
  for (std::int64_t k = 0; k < kDepthMultiple; k += 16) {
    vst1q_u8(to + k, veorq_u8(vld1q_u8(codes + k), vdupq_n_u8(0x80)));
  }
}

}  // namespace
}  // namespace skipdec

#include "int8/row_kernels.inc.h"

namespace skipdec {
const IntegerKernels& SKIPDEC_NAMED(integer_kernels)() { return kKernels<>; }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __aarch64__
