// Sixteen float32 lanes in plain C++; every other Vector gives the same bits.
//
// A source file includes the Vector of its instruction set after the pragma that enables it, with
// <cmath>, <cstring>, <utility>, simd/element.h and simd/intrinsics.h before it. Everything is in
// an anonymous namespace, so that the linker cannot share it between instruction sets.
#pragma once

namespace skipdec {
namespace {

struct Vector {
  static constexpr int kLanes = 16;

  float lanes[kLanes];

  static Vector broadcast(float value) {
    Vector v;
    for (float& lane : v.lanes) lane = value;
    return v;
  }

  // Each `load` reads 16 elements at any address and widens them exactly.
  static Vector load(const float* from) {
    Vector v;
    std::memcpy(v.lanes, from, sizeof v.lanes);
    return v;
  }
  static Vector load(const Float16* from) {
    Vector v;
    for (int i = 0; i < kLanes; ++i) v.lanes[i] = widened(from[i]);
    return v;
  }
  static Vector load(const Bfloat16* from) {
    Vector v;
    for (int i = 0; i < kLanes; ++i) v.lanes[i] = as_float(std::uint32_t{from[i].bits} << 16);
    return v;
  }
  static Vector load(const std::int8_t* from) {
    Vector v;
    for (int i = 0; i < kLanes; ++i) v.lanes[i] = from[i];
    return v;
  }

  // Each `store` to 16 or 8 bits rounds to nearest, ties to even. NaN stays NaN in 16 bits.
  void store(float* to) const { std::memcpy(to, lanes, sizeof lanes); }
  void store(Float16* to) const {
    for (int i = 0; i < kLanes; ++i) to[i] = narrowed(lanes[i]);
  }
  void store(Bfloat16* to) const {
    for (int i = 0; i < kLanes; ++i) {
      const std::uint32_t bits = as_bits(lanes[i]);
      const bool is_nan = lanes[i] != lanes[i];
      to[i].bits = static_cast<std::uint16_t>(
          is_nan ? (bits >> 16) | 0x40U : (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
    }
  }
  // Clamps to [-128, 127]; NaN becomes -128.
  void store(std::int8_t* to) const {
    for (int i = 0; i < kLanes; ++i) {
      const float low = lanes[i] > -128.0F ? lanes[i] : -128.0F;
      to[i] = static_cast<std::int8_t>(std::lrint(low < 127.0F ? low : 127.0F));
    }
  }

 private:
  static std::uint32_t as_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  static float as_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // Scaling by powers of two lets the float32 unit do the work: subnormals are normalised, and only
  // infinities and NaNs, which become quiet, need their exponent set.
  static float widened(Float16 half) {
    const std::uint32_t sign = std::uint32_t{half.bits & 0x8000U} << 16;
    const std::uint32_t rest = std::uint32_t{half.bits & 0x7fffU} << 13;
    if (rest >= 0x0f800000U) {
      return as_float(sign | 0x7f800000U | rest | (rest > 0x0f800000U ? 0x00400000U : 0U));
    }
    return as_float(sign | as_bits(as_float(rest) * 0x1p112F));
  }
  static Float16 narrowed(float value) {
    const std::uint32_t bits = as_bits(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t rest = bits & 0x7fffffffU;
    std::uint32_t half;
    if (rest > 0x7f800000U) {
      half = 0x7e00U | ((rest >> 13) & 0x3ffU);
    } else if (rest >= 0x477ff000U) {  // rounds to 65,536 or more
      half = 0x7c00U;
    } else if (rest < 0x38800000U) {  // subnormal: the sum's last place is 2^-24
      half = as_bits(as_float(rest) + 0.5F) - as_bits(0.5F);
    } else {
      half = (rest - 0x38000000U + 0xfffU + ((rest >> 13) & 1U)) >> 13;
    }
    return Float16{static_cast<std::uint16_t>(sign | half)};
  }

  friend Vector power_of_two(const Vector& biased);
};

template <class Operation>
inline Vector each(const Vector& a, const Vector& b, const Operation& operation) {
  Vector v;
  for (int i = 0; i < Vector::kLanes; ++i) v.lanes[i] = operation(a.lanes[i], b.lanes[i]);
  return v;
}

inline Vector operator+(const Vector& a, const Vector& b) {
  return each(a, b, [](float x, float y) { return x + y; });
}
inline Vector operator-(const Vector& a, const Vector& b) {
  return each(a, b, [](float x, float y) { return x - y; });
}
inline Vector operator*(const Vector& a, const Vector& b) {
  return each(a, b, [](float x, float y) { return x * y; });
}
inline Vector operator/(const Vector& a, const Vector& b) {
  return each(a, b, [](float x, float y) { return x / y; });
}
// Returns a * b + c, rounded once.
inline Vector multiply_add(const Vector& a, const Vector& b, const Vector& c) {
  Vector v;
  for (int i = 0; i < Vector::kLanes; ++i)
    v.lanes[i] = std::fma(a.lanes[i], b.lanes[i], c.lanes[i]);
  return v;
}
// Returns the second operand if either is NaN.
inline Vector max(const Vector& a, const Vector& b) {
  return each(a, b, [](float x, float y) { return x > y ? x : y; });
}
inline Vector min(const Vector& a, const Vector& b) {
  return each(a, b, [](float x, float y) { return x < y ? x : y; });
}
inline Vector abs(const Vector& a) {
  return each(a, a, [](float x, float) { return std::fabs(x); });
}
// Selects per lane: ``below`` if a < b, ``otherwise`` if not or if either is NaN.
inline Vector select_less(const Vector& a, const Vector& b, const Vector& below,
                          const Vector& otherwise) {
  Vector v;
  for (int i = 0; i < Vector::kLanes; ++i) {
    v.lanes[i] = a.lanes[i] < b.lanes[i] ? below.lanes[i] : otherwise.lanes[i];
  }
  return v;
}
// Returns 2^n for integers n in [-126, 127], each given as n + 0x1.8p23.
inline Vector power_of_two(const Vector& biased) {
  Vector v;
  for (int i = 0; i < Vector::kLanes; ++i) {
    v.lanes[i] = Vector::as_float((Vector::as_bits(biased.lanes[i]) << 23) + 0x3f800000U);
  }
  return v;
}
// Returns ((v0 + v8) + (v4 + v12)) + …: every Vector adds halves to halves in this order.
inline float sum(const Vector& v) {
  float partial[8];
  for (int i = 0; i < 8; ++i) partial[i] = v.lanes[i] + v.lanes[i + 8];
  for (int i = 0; i < 4; ++i) partial[i] += partial[i + 4];
  return (partial[0] + partial[2]) + (partial[1] + partial[3]);
}
inline float maximum(const Vector& v) {
  float partial[8];
  const auto larger = [](float x, float y) { return x > y ? x : y; };
  for (int i = 0; i < 8; ++i) partial[i] = larger(v.lanes[i], v.lanes[i + 8]);
  for (int i = 0; i < 4; ++i) partial[i] = larger(partial[i], partial[i + 4]);
  return larger(larger(partial[0], partial[2]), larger(partial[1], partial[3]));
}
// Transposes: rows[i] becomes the i-th lanes of all rows.
inline void transpose(Vector (&rows)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) std::swap(rows[i].lanes[j], rows[j].lanes[i]);
  }
}

}  // namespace
}  // namespace skipdec

#include "simd/partial.inc.h"
