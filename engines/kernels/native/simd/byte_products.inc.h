// Adds products of bytes on AVX-VNNI or, in a test build, by AVX-512's encoding of the instruction.
#pragma once

#include "simd/intrinsics.h"

namespace skipdec {
namespace {

// Adds four products of unsigned and signed bytes to each of 8 sums.
inline __m256i add_byte_products(__m256i sums, __m256i of_unsigned, __m256i of_signed) {
#if defined(SKIPDEC_EMULATED)
  return _mm256_dpbusd_epi32(sums, of_unsigned, of_signed);
#else
  return _mm256_dpbusd_avx_epi32(sums, of_unsigned, of_signed);
#endif
}

}  // namespace
}  // namespace skipdec
