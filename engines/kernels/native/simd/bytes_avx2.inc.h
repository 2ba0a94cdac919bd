// Bytes in AVX2 registers, as products of 8 bits load them.
#pragma once

namespace skipdec {
namespace {

inline __m256i load_lanes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Four bytes from ``from``, as one number.
inline std::int32_t load_word(const void* from) {
  std::int32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace
}  // namespace skipdec
