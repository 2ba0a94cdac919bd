// Computes sums of a group of rows and a panel of packed weights in registers.
//
// The including file defines for its instruction set:
//   // A unit of weights, 32 inputs of 16 columns, in codes of 4 or 8 bits:
//   template <int kBits> struct Codes { static constexpr int kGroup;  // rows whose sums fit into
//                                                                     // registers
//                                       static constexpr int kZeroCode;  // what load makes of a 0
//                                       static Codes load(const std::uint8_t*); }
//   struct Sums  { static Sums start(std::int32_t); Vector as_floats() const; }
//   // Adds 32 codes of each row, stride apart, times a unit, and calls fetch(line) for each of the
//   // unit's cache lines:
//   template <int kRows, int kBits, typename Fetch>
//   void add_unit(Sums (&)[kRows], const Codes<kBits>&, const std::int8_t* codes,
//                 std::int64_t stride, Fetch fetch);
#pragma once

#include "blocks/quantize.inc.h"
#include "simd/finish.inc.h"
#include "simd/unrolled.inc.h"

namespace skipdec {
namespace {

// The distance at which weights are prefetched into the L2 cache, because hardware prefetching
// stops at page boundaries. Measured on Zen 4 for 2048 x 8192 from memory, one thread, against 3072
// bytes into the L1 cache: int4 1 row 0.40 → 0.32 ms, 8 rows 0.70 → 0.74; int8 8 rows 1.06 → 0.92,
// 16 rows 1.80 → 1.60. Distances from 5 to 16 KB differ by less than 10 %.
constexpr std::int64_t kAhead = 8192;

template <int kBits, int kRows, int kUnits>
void multiply_tile(const BlockWeights& weights, const BlockRows& rows, std::int64_t group,
                   std::int64_t panel) {
  constexpr std::int64_t kBlockSize = kUnits * kUnitDepth;
  constexpr std::int64_t kUnitBytes = panel_bytes(kUnitDepth, kBits);
  constexpr int kGroup = Codes<kBits>::kGroup;
  const std::int64_t place = group * kGroup * weights.blocks;
  const std::int8_t* codes = rows.codes + place * kBlockSize;
  const float* row_scale = rows.scale + place;
  const std::int32_t* correction = rows.correction + place;
  const std::uint8_t* packed = weights.codes + panel * weights.blocks * kUnits * kUnitBytes;
  const Bfloat16* scale = weights.scale + panel * weights.blocks * kPanelColumns;
  Vector y[kRows];
  unrolled<kRows>([&](auto row) { y[row] = Vector::broadcast(0.0F); });
  for (std::int64_t block = 0; block < weights.blocks; ++block) {
    Sums sums[kRows];
    unrolled<kRows>([&](auto row) { sums[row] = Sums::start(correction[row]); });
    for (int unit = 0; unit < kUnits; ++unit) {
      const auto fetch = [packed](int line) {
        __builtin_prefetch(packed + kAhead + 64 * line, 0, 2);
      };
      const Codes<kBits> loaded = Codes<kBits>::load(packed);
      add_unit(sums, loaded, codes + unit * kUnitDepth, kBlockSize, fetch);
      packed += kUnitBytes;
    }
    const Vector of_columns = Vector::load(scale);
    unrolled<kRows>([&](auto row) {
      const Vector both = of_columns * Vector::broadcast(row_scale[row]);
      y[row] = multiply_add(sums[row].as_floats(), both, y[row]);
    });
    codes += kRows * kBlockSize;
    row_scale += kRows;
    correction += kRows;
    scale += kPanelColumns;
  }
  Vector results[kRows];  // in memory, for the loop below
  unrolled<kRows>([&](auto row) { results[row] = y[row]; });
  with_columns(weights.columns, panel, [&](const auto& columns) {
    for (int row = 0; row < kRows; ++row) columns.finish(rows, group * kGroup + row, results[row]);
  });
}

using MultiplyTile = void (*)(const BlockWeights&, const BlockRows&, std::int64_t group,
                              std::int64_t panel);

template <int kBits, int kUnits, int... kRows>
constexpr std::array<MultiplyTile, sizeof...(kRows)> by_rows(std::integer_sequence<int, kRows...>) {
  return {multiply_tile<kBits, kRows + 1, kUnits>...};
}

template <int kBits>
MultiplyTile tile_of(std::int64_t block_size, std::int64_t rows) {
  constexpr auto kRows = std::make_integer_sequence<int, Codes<kBits>::kGroup>{};
  static constexpr auto kOf32 = by_rows<kBits, 1>(kRows), kOf64 = by_rows<kBits, 2>(kRows),
                        kOf128 = by_rows<kBits, 4>(kRows);
  const auto index = static_cast<std::size_t>(rows - 1);
  return block_size == 32 ? kOf32[index] : block_size == 64 ? kOf64[index] : kOf128[index];
}

template <int kBits>
void multiply(const BlockWeights& weights, const BlockRows& rows, std::int64_t begin,
              std::int64_t end) noexcept {
  for (std::int64_t group = 0; group < rows.groups(); ++group) {
    const MultiplyTile multiply_one = tile_of<kBits>(weights.block_size, rows.rows_of(group));
    for (std::int64_t panel = begin; panel < end; ++panel) {
      multiply_one(weights, rows, group, panel);
    }
  }
}

template <int kBits>
constexpr BlockKernels kKernels{Codes<kBits>::kGroup, quantize<Codes<kBits>::kZeroCode>,
                                multiply<kBits>};

const BlockKernels& kernels_of(int bits) { return bits == 8 ? kKernels<8> : kKernels<4>; }

}  // namespace
}  // namespace skipdec
