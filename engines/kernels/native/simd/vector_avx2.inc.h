// Sixteen float32 lanes in two AVX2 registers (AVX2, FMA, F16C). vector_portable.inc.h documents
// each function.
#pragma once

namespace skipdec {
namespace {

struct Vector {
  static constexpr int kLanes = 16;

  __m256 low, high;

  static Vector broadcast(float value) {
    const __m256 lanes = _mm256_set1_ps(value);
    return {lanes, lanes};
  }

  static Vector load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  static Vector load(const Float16* from) {
    const auto* halves = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static Vector load(const Bfloat16* from) {
    const auto* halves = reinterpret_cast<const __m128i*>(from);
    return {widened(_mm_loadu_si128(halves)), widened(_mm_loadu_si128(halves + 1))};
  }
  static Vector load(const std::int8_t* from) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
  }

  void store(float* to) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }
  void store(Float16* to) const {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    auto* halves = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(halves, _mm256_cvtps_ph(low, kNearest));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(high, kNearest));
  }
  void store(Bfloat16* to) const { packed(rounded(low), rounded(high), to); }
  void store(std::int8_t* to) const {
    const __m256i words = _mm256_packs_epi32(limited(low), limited(high));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  }

 private:
  static __m256 widened(__m128i bfloat16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bfloat16), 16));
  }
  static __m256i rounded(__m256 lanes) {
    const __m256i bits = _mm256_castps_si256(lanes);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest =
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, is_nan), 16);
  }
  static void packed(__m256i low_words, __m256i high_words, Bfloat16* to) {
    const __m256i words = _mm256_packus_epi32(low_words, high_words);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(words, 0xd8));
  }
  static __m256i limited(__m256 lanes) {
    const __m256 above = _mm256_max_ps(lanes, _mm256_set1_ps(-128.0F));
    return _mm256_cvtps_epi32(_mm256_min_ps(above, _mm256_set1_ps(127.0F)));
  }
};

inline Vector operator+(Vector a, Vector b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vector operator-(Vector a, Vector b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vector operator*(Vector a, Vector b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vector operator/(Vector a, Vector b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Vector multiply_add(Vector a, Vector b, Vector c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vector max(Vector a, Vector b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Vector min(Vector a, Vector b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Vector abs(Vector a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Vector select_less(Vector a, Vector b, Vector below, Vector otherwise) {
  return {_mm256_blendv_ps(otherwise.low, below.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.high, below.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline __m256 power_of_two(__m256 biased) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(biased), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f800000)));
}
inline Vector power_of_two(Vector biased) {
  return {power_of_two(biased.low), power_of_two(biased.high)};
}

inline float sum(Vector v) {
  const __m256 of8 = _mm256_add_ps(v.low, v.high);
  const __m128 of4 = _mm_add_ps(_mm256_castps256_ps128(of8), _mm256_extractf128_ps(of8, 1));
  const __m128 of2 = _mm_add_ps(of4, _mm_movehl_ps(of4, of4));
  return _mm_cvtss_f32(_mm_add_ss(of2, _mm_movehdup_ps(of2)));
}
inline float maximum(Vector v) {
  const __m256 of8 = _mm256_max_ps(v.low, v.high);
  const __m128 of4 = _mm_max_ps(_mm256_castps256_ps128(of8), _mm256_extractf128_ps(of8, 1));
  const __m128 of2 = _mm_max_ps(of4, _mm_movehl_ps(of4, of4));
  return _mm_cvtss_f32(_mm_max_ss(of2, _mm_movehdup_ps(of2)));
}

inline void transpose(__m256 (&rows)[8]) {
  __m256 quarters[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256 low01 = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    const __m256 high01 = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const __m256 low23 = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const __m256 high23 = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    quarters[i] = _mm256_shuffle_ps(low01, low23, 0x44);
    quarters[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
    quarters[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    quarters[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(quarters[i], quarters[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quarters[i], quarters[i + 4], 0x31);
  }
}

// Transposes four blocks of 8 by 8 and swaps those off the diagonal.
inline void transpose(Vector (&rows)[16]) {
  for (int first = 0; first < 16; first += 8) {
    __m256 low[8], high[8];
    for (int i = 0; i < 8; ++i) {
      low[i] = rows[first + i].low;
      high[i] = rows[first + i].high;
    }
    transpose(low);
    transpose(high);
    for (int i = 0; i < 8; ++i) rows[first + i] = {low[i], high[i]};
  }
  for (int i = 0; i < 8; ++i) {
    const __m256 moved = rows[i].high;
    rows[i].high = rows[i + 8].low;
    rows[i + 8].low = moved;
  }
}

}  // namespace
}  // namespace skipdec

#include "simd/partial.inc.h"
