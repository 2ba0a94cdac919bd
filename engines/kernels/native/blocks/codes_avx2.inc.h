// 4-bit codes of weights, two per byte, in AVX2 registers. The including file defines 8-bit codes,
// which it multiplies in its own way. Needs simd/bytes_avx2.inc.h.
#pragma once

namespace skipdec {
namespace {

constexpr int kVectors = kUnitDepth / 4;  // of four inputs of 8 columns

template <int kBits>
struct Codes;

template <>
struct Codes<4> {
  static constexpr int kGroup = 4, kZeroCode = 8;
  __m256i low[kVectors], high[kVectors];  // inputs 4·i … 4·i + 3 of 8 columns each
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    unpack(from, codes.low);
    unpack(from + 32, codes.high);
    return codes;
  }
  static void unpack(const std::uint8_t* from, __m256i (&vectors)[kVectors]) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int i = 0; i < kVectors; i += 2) {
      const __m256i both = load_lanes(from + 32 * i);
      vectors[i] = _mm256_and_si256(both, mask);
      vectors[i + 1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    }
  }
};

}  // namespace
}  // namespace skipdec
