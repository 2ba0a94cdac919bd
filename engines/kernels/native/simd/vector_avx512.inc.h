// Sixteen float32 lanes in one AVX-512 register (F, BW, DQ, VL). vector_portable.inc.h documents
// each function.
#pragma once

namespace skipdec {
namespace {

struct Vector {
  static constexpr int kLanes = 16;

  __m512 lanes;

  static Vector broadcast(float value) { return {_mm512_set1_ps(value)}; }

  static Vector load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vector load(const Float16* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static Vector load(const Bfloat16* from) {
    return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Vector load(const std::int8_t* from) {
    return widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  void store(float* to) const { _mm512_storeu_ps(to, lanes); }
  void store(Float16* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), as_float16());
  }
  void store(Bfloat16* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), as_bfloat16());
  }
  void store(std::int8_t* to) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), as_int8()); }

  static Vector widened(__m256i bfloat16) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bfloat16), 16))};
  }
  static Vector widened(__m128i int8) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(int8))}; }

  __m256i as_float16() const {
    return _mm512_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // vcvtneps2bf16 would treat subnormals as zeros.
  __m256i as_bfloat16() const {
    const __m512i bits = _mm512_castps_si512(lanes);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
  }
  __m128i as_int8() const {
    const __m512 low = _mm512_max_ps(lanes, _mm512_set1_ps(-128.0F));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_min_ps(low, _mm512_set1_ps(127.0F))));
  }
};

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1U << count) - 1U); }

inline Vector load_first(const float* from, int count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), from)};
}
inline Vector load_first(const Float16* from, int count) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), from))};
}
inline Vector load_first(const Bfloat16* from, int count) {
  return Vector::widened(_mm256_maskz_loadu_epi16(first_lanes(count), from));
}
inline Vector load_first(const std::int8_t* from, int count) {
  return Vector::widened(_mm_maskz_loadu_epi8(first_lanes(count), from));
}
inline void store_first(Vector v, float* to, int count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), v.lanes);
}
inline void store_first(Vector v, Float16* to, int count) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), v.as_float16());
}
inline void store_first(Vector v, Bfloat16* to, int count) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), v.as_bfloat16());
}
inline void store_first(Vector v, std::int8_t* to, int count) {
  _mm_mask_storeu_epi8(to, first_lanes(count), v.as_int8());
}

inline Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
inline Vector operator-(Vector a, Vector b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
inline Vector operator*(Vector a, Vector b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
inline Vector operator/(Vector a, Vector b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
inline Vector multiply_add(Vector a, Vector b, Vector c) {
  return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)};
}
inline Vector max(Vector a, Vector b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
inline Vector min(Vector a, Vector b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
inline Vector abs(Vector a) { return {_mm512_abs_ps(a.lanes)}; }
inline Vector select_less(Vector a, Vector b, Vector below, Vector otherwise) {
  const __mmask16 is_less = _mm512_cmp_ps_mask(a.lanes, b.lanes, _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(otherwise.lanes, is_less, below.lanes)};
}
inline Vector power_of_two(Vector biased) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(biased.lanes), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)))};
}

inline __m256 lower_half(Vector v) { return _mm512_castps512_ps256(v.lanes); }
inline __m256 upper_half(Vector v) { return _mm512_extractf32x8_ps(v.lanes, 1); }

inline float sum(Vector v) {
  const __m256 of8 = _mm256_add_ps(lower_half(v), upper_half(v));
  const __m128 of4 = _mm_add_ps(_mm256_castps256_ps128(of8), _mm256_extractf128_ps(of8, 1));
  const __m128 of2 = _mm_add_ps(of4, _mm_movehl_ps(of4, of4));
  return _mm_cvtss_f32(_mm_add_ss(of2, _mm_movehdup_ps(of2)));
}
inline float maximum(Vector v) {
  const __m256 of8 = _mm256_max_ps(lower_half(v), upper_half(v));
  const __m128 of4 = _mm_max_ps(_mm256_castps256_ps128(of8), _mm256_extractf128_ps(of8, 1));
  const __m128 of2 = _mm_max_ps(of4, _mm_movehl_ps(of4, of4));
  return _mm_cvtss_f32(_mm_max_ss(of2, _mm_movehdup_ps(of2)));
}

// Transposes 4 by 4 lanes within quarters of registers, then quarters of 128 bits between
// registers.
inline void transpose(Vector (&rows)[16]) {
  __m512 quarters[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512 low01 = _mm512_unpacklo_ps(rows[i].lanes, rows[i + 1].lanes);
    const __m512 high01 = _mm512_unpackhi_ps(rows[i].lanes, rows[i + 1].lanes);
    const __m512 low23 = _mm512_unpacklo_ps(rows[i + 2].lanes, rows[i + 3].lanes);
    const __m512 high23 = _mm512_unpackhi_ps(rows[i + 2].lanes, rows[i + 3].lanes);
    quarters[i] = _mm512_shuffle_ps(low01, low23, 0x44);
    quarters[i + 1] = _mm512_shuffle_ps(low01, low23, 0xee);
    quarters[i + 2] = _mm512_shuffle_ps(high01, high23, 0x44);
    quarters[i + 3] = _mm512_shuffle_ps(high01, high23, 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512 even01 = _mm512_shuffle_f32x4(quarters[i], quarters[i + 4], 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(quarters[i], quarters[i + 4], 0xdd);
    const __m512 even23 = _mm512_shuffle_f32x4(quarters[i + 8], quarters[i + 12], 0x88);
    const __m512 odd23 = _mm512_shuffle_f32x4(quarters[i + 8], quarters[i + 12], 0xdd);
    rows[i].lanes = _mm512_shuffle_f32x4(even01, even23, 0x88);
    rows[i + 4].lanes = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    rows[i + 8].lanes = _mm512_shuffle_f32x4(even01, even23, 0xdd);
    rows[i + 12].lanes = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
  }
}

}  // namespace
}  // namespace skipdec
