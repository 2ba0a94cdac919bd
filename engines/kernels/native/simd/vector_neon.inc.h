// Sixteen float32 lanes in four NEON registers of aarch64. vector_portable.inc.h documents each
// function.
#pragma once

namespace skipdec {
namespace {

struct Vector {
  static constexpr int kLanes = 16;

  float32x4_t quarters[4];

  static Vector broadcast(float value) {
    const float32x4_t lanes = vdupq_n_f32(value);
    return {{lanes, lanes, lanes, lanes}};
  }

  static Vector load(const float* from) {
    return {{vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)}};
  }
  static Vector load(const Float16* from) {
    Vector v;
    for (int i = 0; i < 4; ++i) {
      const uint16x4_t bits = vld1_u16(&from[4 * i].bits);
      v.quarters[i] = vcvt_f32_f16(vreinterpret_f16_u16(bits));
    }
    return v;
  }
  static Vector load(const Bfloat16* from) {
    Vector v;
    for (int i = 0; i < 4; ++i) {
      v.quarters[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&from[4 * i].bits), 16));
    }
    return v;
  }
  static Vector load(const std::int8_t* from) {
    const int8x16_t all = vld1q_s8(from);
    const int16x8_t low = vmovl_s8(vget_low_s8(all));
    const int16x8_t high = vmovl_s8(vget_high_s8(all));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }

  void store(float* to) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, quarters[i]);
  }
  void store(Float16* to) const {
    for (int i = 0; i < 4; ++i) {
      vst1_u16(&to[4 * i].bits, vreinterpret_u16_f16(vcvt_f16_f32(quarters[i])));
    }
  }
  void store(Bfloat16* to) const {
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t bits = vreinterpretq_u32_f32(quarters[i]);
      const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
      const uint32x4_t nearest = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
      const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
      const uint32x4_t is_number = vceqq_f32(quarters[i], quarters[i]);
      vst1_u16(&to[4 * i].bits, vshrn_n_u32(vbslq_u32(is_number, nearest, quiet), 16));
    }
  }
  void store(std::int8_t* to) const {
    int16x4_t words[4];
    for (int i = 0; i < 4; ++i) {
      const float32x4_t least = vdupq_n_f32(-128.0F);
      const float32x4_t low = vbslq_f32(vcgtq_f32(quarters[i], least), quarters[i], least);
      words[i] = vmovn_s32(vcvtnq_s32_f32(vminq_f32(low, vdupq_n_f32(127.0F))));
    }
    vst1q_s8(to, vcombine_s8(vmovn_s16(vcombine_s16(words[0], words[1])),
                             vmovn_s16(vcombine_s16(words[2], words[3]))));
  }
};

inline Vector operator+(const Vector& a, const Vector& b) {
  Vector v;
  for (int i = 0; i < 4; ++i) v.quarters[i] = vaddq_f32(a.quarters[i], b.quarters[i]);
  return v;
}
inline Vector operator-(const Vector& a, const Vector& b) {
  Vector v;
  for (int i = 0; i < 4; ++i) v.quarters[i] = vsubq_f32(a.quarters[i], b.quarters[i]);
  return v;
}
inline Vector operator*(const Vector& a, const Vector& b) {
  Vector v;
  for (int i = 0; i < 4; ++i) v.quarters[i] = vmulq_f32(a.quarters[i], b.quarters[i]);
  return v;
}
inline Vector operator/(const Vector& a, const Vector& b) {
  Vector v;
  for (int i = 0; i < 4; ++i) v.quarters[i] = vdivq_f32(a.quarters[i], b.quarters[i]);
  return v;
}
inline Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) {
  Vector v;
  for (int i = 0; i < 4; ++i) {
    v.quarters[i] = vfmaq_f32(c.quarters[i], a.quarters[i], b.quarters[i]);
  }
  return v;
}
inline Vector select_less(const Vector& a, const Vector& b, const Vector& below,
                          const Vector& otherwise) {
  Vector v;
  for (int i = 0; i < 4; ++i) {
    v.quarters[i] = vbslq_f32(vcltq_f32(a.quarters[i], b.quarters[i]), below.quarters[i],
                              otherwise.quarters[i]);
  }
  return v;
}
// Compares like x86, because NEON's own minimum and maximum return NaN if either operand is NaN.
inline Vector max(const Vector& a, const Vector& b) { return select_less(b, a, a, b); }
inline Vector min(const Vector& a, const Vector& b) { return select_less(a, b, a, b); }
inline Vector abs(const Vector& a) {
  Vector v;
  for (int i = 0; i < 4; ++i) v.quarters[i] = vabsq_f32(a.quarters[i]);
  return v;
}
inline Vector power_of_two(const Vector& biased) {
  Vector v;
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(biased.quarters[i]), 23);
    v.quarters[i] = vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(0x3f800000)));
  }
  return v;
}

inline float sum(const Vector& v) {
  const float32x4_t of4 =
      vaddq_f32(vaddq_f32(v.quarters[0], v.quarters[2]), vaddq_f32(v.quarters[1], v.quarters[3]));
  const float32x2_t of2 = vadd_f32(vget_low_f32(of4), vget_high_f32(of4));
  return vget_lane_f32(of2, 0) + vget_lane_f32(of2, 1);
}
inline float maximum(const Vector& v) {
  const auto larger = [](float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); };
  const float32x4_t of4 =
      larger(larger(v.quarters[0], v.quarters[2]), larger(v.quarters[1], v.quarters[3]));
  const float32x4_t of2 = larger(of4, vextq_f32(of4, of4, 2));
  const float even = vgetq_lane_f32(of2, 0), odd = vgetq_lane_f32(of2, 1);
  return even > odd ? even : odd;
}

inline void transpose(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
  const float64x2_t low01 = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
  const float64x2_t low23 = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
  const float64x2_t high01 = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
  const float64x2_t high23 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
  a = vreinterpretq_f32_f64(vtrn1q_f64(low01, low23));
  b = vreinterpretq_f32_f64(vtrn1q_f64(high01, high23));
  c = vreinterpretq_f32_f64(vtrn2q_f64(low01, low23));
  d = vreinterpretq_f32_f64(vtrn2q_f64(high01, high23));
}

// Transposes sixteen blocks of 4 by 4 and swaps those off the diagonal.
inline void transpose(Vector (&rows)[16]) {
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 4; ++j) {
      transpose(rows[i].quarters[j], rows[i + 1].quarters[j], rows[i + 2].quarters[j],
                rows[i + 3].quarters[j]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) {
      for (int k = 0; k < 4; ++k) {
        std::swap(rows[4 * i + k].quarters[j], rows[4 * j + k].quarters[i]);
      }
    }
  }
}

}  // namespace
}  // namespace skipdec

#include "simd/partial.inc.h"
