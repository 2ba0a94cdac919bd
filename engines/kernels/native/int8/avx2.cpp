// Products on AVX2: vpmaddubsw adds two products of a weight's magnitude and an activation's code
// with the weight's sign. Codes are stored minus 128, so sums need no offset.
#if defined(__x86_64__)
#define SKIPDEC_AVX2

#include "int8/integer_product.h"
#include "int8/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/bytes_avx2.inc.h"
// clang-format on

namespace skipdec {
namespace {

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
namespace {

// Returns the sums of a row of codes and a block of packed weights.
BlockSums scalar_sums(const std::int8_t* codes, const std::int8_t* packed, std::int64_t depth) {
  std::int32_t sums[kBlockColumns] = {};
  for (std::int64_t k = 0; k < depth; k += kDepthStep, packed += kBlockColumns * kDepthStep) {
    for (std::int64_t i = 0; i < kBlockColumns * kDepthStep; ++i) {
      sums[i / kDepthStep] += codes[k + i % kDepthStep] * packed[i];
    }
  }
  return {{{load_lanes(sums)}, {load_lanes(sums + kLanes)}}};
}

void multiply_scalars(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t begin,
                      std::int64_t end) {
  const std::int64_t depth = weights.padded_depth;
  const auto* codes = reinterpret_cast<const std::int8_t*>(rows.codes);
  for (std::int64_t block = begin; block < end; ++block) {
    const std::int8_t* packed = weights.codes + block * depth * kBlockColumns;
    finish_block(weights, rows, 0, rows.count, block, [&](std::int64_t row) {
      return scalar_sums(codes + row * code_stride(depth), packed, depth);
    });
  }
}

// Multiplies in vectors, unless a row's scale is subnormal: rounding such a scale may lead to codes
// of -128, which have no opposite in 8 bits. All other codes are -127 … 127.
void multiply_any(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t begin,
                  std::int64_t end) noexcept {
  const auto is_subnormal = [](float scale) {
    return scale > 0.0F && scale < std::numeric_limits<float>::min();
  };
  const bool is_any = std::any_of(rows.scale, rows.scale + rows.count, is_subnormal);
  (is_any ? multiply_scalars : multiply<>)(weights, rows, begin, end);
}

constexpr IntegerKernels kAnyKernels{kKernels<>.code_bytes, kKernels<>.quantize, multiply_any};

}  // namespace

const IntegerKernels& SKIPDEC_NAMED(integer_kernels)() { return kAnyKernels; }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
