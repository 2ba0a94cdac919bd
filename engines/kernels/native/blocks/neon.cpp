// Products by NEON's dot products of signed bytes.
#if defined(__aarch64__)
#define SKIPDEC_NEON_DOT

#include "blocks/block_product.h"
#include "blocks/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr int kVectors = kUnitDepth / 4;  // of four inputs of 4 columns

template <int kBits>
struct Codes;

template <>
struct Codes<4> {
  static constexpr int kGroup = 4, kZeroCode = 8;
  int8x16_t quarters[4][kVectors];  // inputs 4·i … 4·i + 3 of 4 columns each
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    for (int i = 0; i < kVectors; i += 2) {
      for (int quarter = 0; quarter < 4; ++quarter) {
        const uint8x16_t both = vld1q_u8(from + 32 * i + 16 * quarter);
        codes.quarters[quarter][i] = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
        codes.quarters[quarter][i + 1] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
      }
    }
    return codes;
  }
};

template <>
struct Codes<8> {
  static constexpr int kGroup = 4, kZeroCode = 0;
  int8x16_t quarters[4][kVectors];  // inputs 4·i … 4·i + 3 of 4 columns each
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    for (int i = 0; i < kVectors; ++i) {
      for (int quarter = 0; quarter < 4; ++quarter) {
        codes.quarters[quarter][i] = vreinterpretq_s8_u8(vld1q_u8(from + 64 * i + 16 * quarter));
      }
    }
    return codes;
  }
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
  int32x4_t quarters[4];
  static Sums start(std::int32_t value) {
    const int32x4_t lanes = vdupq_n_s32(value);
    return {{lanes, lanes, lanes, lanes}};
  }
  template <int kBits>
  void add(const Codes<kBits>& codes, const std::int8_t* row) {
    for (int i = 0; i < kVectors; ++i) {
      std::int32_t word;
      std::memcpy(&word, row + 4 * i, sizeof word);
      const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(word));
      for (int quarter = 0; quarter < 4; ++quarter) {
        quarters[quarter] = dot(quarters[quarter], codes.quarters[quarter][i], four);
      }
    }
  }
  Vector as_floats() const {
    Vector floats;
    for (int i = 0; i < 4; ++i) floats.quarters[i] = vcvtq_f32_s32(quarters[i]);
    return floats;
  }
};

}  // namespace
}  // namespace skipdec

#include "blocks/multiply.inc.h"
#include "blocks/row_by_row.inc.h"

namespace skipdec {
const BlockKernels& SKIPDEC_NAMED(block_kernels)(int bits) { return kernels_of(bits); }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __aarch64__
