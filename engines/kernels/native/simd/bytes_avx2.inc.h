// Loading and multiplying bytes in AVX2 registers.
#pragma once

namespace skipdec {
namespace {

inline __m256i load_lanes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Returns four bytes at ``from`` as one number.
inline std::int32_t load_word(const void* from) {
  std::int32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Returns sums of two products of a code, -127 … 127, and a weight, -128 … 127, given with its
// magnitude: the code with the weight's sign times the magnitude. They are at most
// 2 · 127 · 128 = 32,512, which fits into 16 bits.
inline __m256i products_of_two(__m256i codes, __m256i weights, __m256i magnitudes) {
  return _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(codes, weights));
}

}  // namespace
}  // namespace skipdec
