// Products on AVX-512 VNNI: vpdpbusd adds four 8-bit products to each of 16 sums. Its unsigned
// operand is a weight's 4-bit code, 0 … 15, or 8-bit code plus 128; its signed operand is an
// activation's code.
#if defined(__x86_64__)
#define SKIPDEC_AVX512VNNI

#include "blocks/block_product.h"
#include "blocks/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/unrolled.inc.h"
// clang-format on
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, in g++ 12's own headers
#endif

namespace skipdec {
namespace {

constexpr int kVectors = kUnitDepth / 4;  // of four inputs of 16 columns

template <int kBits>
struct Codes;

template <>
struct Codes<4> {
  static constexpr int kGroup = 8, kZeroCode = 8;
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
  __m512i operator[](int i) const { return vectors[i]; }
};

template <>
struct Codes<8> {
  static constexpr int kGroup = 8, kZeroCode = 128;
  const std::uint8_t* from;
  static Codes load(const std::uint8_t* from) { return {from}; }
  __m512i operator[](int i) const {
    return _mm512_xor_si512(_mm512_loadu_si512(from + 64 * i), _mm512_set1_epi8(-128));
  }
};

struct Sums {
  __m512i lanes;
  static Sums start(std::int32_t value) { return {_mm512_set1_epi32(value)}; }
  Vector as_floats() const { return {_mm512_cvtepi32_ps(lanes)}; }
};

// Adds products to sums. With the intrinsic, g++ 12 prefetches the weights of a whole block at once
// and reads them in bursts, so that memory idles. ``kInOrder`` keeps the instructions in order, for
// calls that memory limits. Speeds relative to reading alone, on one thread of a Zen 5, 8 bits: 1
// row 0.90 → 0.95, 2 rows 0.79 → 0.94, 4 rows 0.80 → 0.91; 4 bits: 2 rows 0.86 → 0.98. With more
// rows, as in prompts, this is slower: 4 bits, 8 rows 0.65 → 0.60.
template <bool kInOrder>
inline void add_products(__m512i& sums, __m512i of_weights, __m512i codes) {
  if constexpr (kInOrder) {
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(of_weights), "v"(codes));
  } else {
    sums = _mm512_dpbusd_epi32(sums, of_weights, codes);
  }
}

// Multiplies four inputs of every row before the next four, because consecutive additions to one
// row's sums would wait for each other.
template <int kRows, int kBits, typename Fetch>
inline __attribute__((always_inline)) void add_unit(Sums (&sums)[kRows], const Codes<kBits>& codes,
                                                    const std::int8_t* rows, std::int64_t stride,
                                                    Fetch fetch) {
  constexpr bool kIsBoundByMemory = kRows <= (kBits == 8 ? 6 : 3);
  unrolled<kVectors>([&](auto i) __attribute__((always_inline)) {
    if constexpr (i * kBits % 8 == 0) fetch(i * kBits / 8);
    const __m512i of_weights = codes[i];
    unrolled<kRows>([&](auto row) __attribute__((always_inline)) {
      std::int32_t four;
      std::memcpy(&four, rows + row * stride + 4 * i, sizeof four);
      add_products<kIsBoundByMemory>(sums[row].lanes, of_weights, _mm512_set1_epi32(four));
    });
  });
}

}  // namespace
}  // namespace skipdec

#include "blocks/multiply.inc.h"

namespace skipdec {
const BlockKernels& SKIPDEC_NAMED(block_kernels)(int bits) { return kernels_of(bits); }
}  // namespace skipdec

#include "simd/end.inc.h"
#endif  // __x86_64__
