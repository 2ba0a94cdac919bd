// Loading bytes into AVX2 registers for 8-bit products.
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

}  // namespace
}  // namespace skipdec
