// Products on AVX2: vpmaddubsw adds two products of a weight's magnitude and an activation's code
// with the weight's sign. Codes are stored minus 128, so sums need no offset.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "int8/integer_product.h"
#include "int8/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#include "simd/bytes_avx2.inc.h"
#include "simd/vector_avx2.inc.h"

namespace skipdec {
namespace {

constexpr std::int64_t kCodeBytes = 1;
constexpr int kMaximumRows = 8;
constexpr int kLanes = 8;

// With more than four rows, half a block at a time, so that all of them share its weights. Measured
// on Zen 3 for 2048 x 8192 from memory, one thread, against two parts of four rows or fewer with
// weights widened to 16 bits: 5 rows 1.60 → 1.28 ms, 6 rows 2.05 → 1.50, 8 rows 2.07 → 1.94.
constexpr int columns_at_once(int rows) { return rows <= 4 ? 16 : 8; }

struct Codes {
  __m256i lanes;
  static Codes load(const std::uint8_t* from) { return {_mm256_set1_epi32(load_word(from))}; }
};

struct Weights {
  __m256i lanes, magnitudes;
  static Weights load(const std::int8_t* from) {
    const __m256i lanes = load_lanes(from);
    return {lanes, _mm256_abs_epi8(lanes)};
  }
};

struct Sums {
  __m256i lanes;
  static Sums zero() { return {_mm256_setzero_si256()}; }
  void add(const Codes& codes, const Weights& weights) {
    const __m256i of_two = products_of_two(codes.lanes, weights.lanes, weights.magnitudes);
    lanes = _mm256_add_epi32(lanes, _mm256_madd_epi16(of_two, _mm256_set1_epi16(1)));
  }
  void add(const Sums& other) { lanes = _mm256_add_epi32(lanes, other.lanes); }
};

struct BlockSums {
  Sums parts[2];
  Vector less(const std::int32_t*) const {
    return {_mm256_cvtepi32_ps(parts[0].lanes), _mm256_cvtepi32_ps(parts[1].lanes)};
  }
};

void store_codes(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
  for (std::int64_t k = 0; k < kDepthMultiple; k += 32) {
    const __m256i moved = _mm256_xor_si256(load_lanes(codes + k), _mm256_set1_epi8(-128));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k), moved);
  }
}

}  // namespace
}  // namespace skipdec

#include "int8/row_kernels.inc.h"

namespace skipdec {
const IntegerKernels& avx2_integer_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
