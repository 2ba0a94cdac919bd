// Products on AVX-512 VNNI: vpdpbusd adds four products of 8 bits to each of 16 sums; its unsigned
// operand is a weight's code, 0 … 15, and its signed one an activation's.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "int4/block_product.h"
#include "int4/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(                                                               \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, in g++ 12's own headers
#endif

#include "simd/unrolled.inc.h"
#include "simd/vector_avx512.inc.h"

namespace skipdec {
namespace {

constexpr int kGroup = 8;

struct Codes {
  static constexpr int kVectors = 8;
  __m512i vectors[kVectors];  // inputs 4·i … 4·i + 3 of 16 columns
  static Codes load(const std::uint8_t* from) {
    const __m512i low = _mm512_set1_epi8(15);
    Codes codes;
    for (int i = 0; i < kVectors; i += 2) {
      const __m512i both = _mm512_loadu_si512(from + 32 * i);
      codes.vectors[i] = _mm512_and_si512(both, low);
      codes.vectors[i + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    return codes;
  }
};

struct Sums {
  __m512i lanes;
  static Sums start(std::int32_t value) { return {_mm512_set1_epi32(value)}; }
  Vector as_floats() const { return {_mm512_cvtepi32_ps(lanes)}; }
};

// Multiplies four inputs of every row before the next four, because consecutive additions to one
// row's sums would wait for each other.
template <int kRows>
inline __attribute__((always_inline)) void add_unit(Sums (&sums)[kRows], const Codes& codes,
                                                    const std::int8_t* rows, std::int64_t stride) {
  unrolled<Codes::kVectors>([&](auto i) {
    unrolled<kRows>([&](auto row) {
      std::int32_t four;
      std::memcpy(&four, rows + row * stride + 4 * i, sizeof four);
      sums[row].lanes =
          _mm512_dpbusd_epi32(sums[row].lanes, codes.vectors[i], _mm512_set1_epi32(four));
    });
  });
}

}  // namespace
}  // namespace skipdec

#include "int4/multiply.inc.h"

namespace skipdec {
const BlockKernels& avx512vnni_block_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
