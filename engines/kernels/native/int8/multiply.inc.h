// Computes sums of rows of codes and packed weights in registers.
//
// The including file defines for its instruction set:
//   kMaximumRows                  // rows whose sums fit into registers
//   kLanes                        // columns of a register: 4, 8 or 16
//   // Columns whose sums of that many rows fit into registers: kLanes, or a multiple of 16.
//   constexpr int columns_at_once(int rows)
//   // Four codes along the depth, for all columns:
//   struct Codes   { static Codes load(const std::uint8_t*); }
//   // Four weights along the depth of kLanes columns:
//   struct Weights { static Weights load(const std::int8_t*); }
//   struct Sums    { static Sums zero(); void add(const Codes&, const Weights&);
//                    void add(const Sums&); }
//   // The sums of a block's columns:
//   struct BlockSums { Sums parts[16 / kLanes]; Vector less(const std::int32_t* offset) const; }
#pragma once

#include "int8/finish.inc.h"
#include "simd/unrolled.inc.h"

namespace skipdec {
namespace {

// Returns the stride of rows of codes: one cache line more than their length, because many rows at
// strides of 4096 bytes would map to the same few lines of the L1 cache.
constexpr std::int64_t code_stride(std::int64_t padded_depth) { return padded_depth + 64; }

// Prefetches the weights of the next blocks into the L2 cache: with more than two rows, the
// processor has too many outstanding loads to run far enough ahead. Measured on Zen 4, weights from
// memory, 2 threads: 8 rows 0.545 → 0.357 ms, 32 rows 1.62 → 1.32; into the L1 cache: 0.713.
inline void fetch_ahead(const std::int8_t* weights) { __builtin_prefetch(weights, 0, 2); }

constexpr int kParts = static_cast<int>(kBlockColumns) / kLanes;  // registers of a block

// Prefetch distance in a stream of weights.
constexpr std::int64_t kAhead = 8192;

// Returns the number of steps with separate sums, a power of two, which hides the latency of an
// addition.
constexpr int steps_at_once(int sums, bool is_stream) {
  const int most = is_stream ? 16 : 4;
  int steps = 1;
  while (2 * steps * sums <= most) steps *= 2;
  return steps;
}

// Computes the sums of ``kRegisters`` registers of columns, from ``part`` of a block whose weights
// are at ``packed``, or of whole blocks.
template <int kRows, int kRegisters, bool kIsStream, int kBlocks>
void add_products(const std::uint8_t* codes, const std::int8_t* packed, std::int64_t depth,
                  int part, BlockSums (&totals)[kBlocks][kRows]) {
  constexpr int kSteps = steps_at_once(kRows * kBlocks, kIsStream);
  constexpr int kPartsAtOnce = std::min(kRegisters, kParts);
  const std::int64_t stride = code_stride(depth);
  const std::int8_t* const from = packed + part * kLanes * kDepthStep;
  Sums sums[kSteps][kRows][kRegisters];
  unrolled<kSteps>([&](auto step) {
    unrolled<kRows>(
        [&](auto m) { unrolled<kRegisters>([&](auto r) { sums[step][m][r] = Sums::zero(); }); });
  });
  for (std::int64_t k = 0; k < depth; k += kSteps * kDepthStep) {
    unrolled<kSteps>([&](auto step) {
      const std::int64_t at = k + step * kDepthStep;
      Weights loaded[kRegisters];
      unrolled<kRegisters>([&](auto r) {
        const std::int8_t* line = from + (r / kParts * depth + at) * kBlockColumns;
        loaded[r] = Weights::load(line + r % kParts * kLanes * kDepthStep);
        if constexpr (kIsStream) {
          __builtin_prefetch(line + kAhead);
        } else if constexpr (kRows > 2 && r % kParts == 0) {
          // Parts share the next block, so that memory is busy all the time.
          const std::int64_t share = (part * depth + at * kPartsAtOnce) / kParts;
          fetch_ahead(packed + ((r / kParts + kBlocks) * depth + share) * kBlockColumns);
        }
      });
      unrolled<kRows>([&](auto m) {
        const Codes broadcast = Codes::load(codes + m * stride + at);
        unrolled<kRegisters>([&](auto r) { sums[step][m][r].add(broadcast, loaded[r]); });
      });
    });
  }
  unrolled<kRows>([&](auto m) {
    unrolled<kRegisters>([&](auto r) {
      Sums total = sums[0][m][r];
      unrolled<kSteps - 1>([&](auto step) { total.add(sums[step + 1][m][r]); });
      totals[r / kParts][m].parts[part + r % kParts] = total;
    });
  });
}

template <int kRows, int kBlocks, bool kIsStream>
void multiply_tile(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t row,
                   std::int64_t block) {
  constexpr int kRegisters = std::min(kBlocks * kParts, columns_at_once(kRows) / kLanes);
  const std::int64_t depth = weights.padded_depth;
  const std::uint8_t* codes = rows.codes + row * code_stride(depth);
  const std::int8_t* packed = weights.codes + block * depth * kBlockColumns;
  BlockSums totals[kBlocks][kRows];
  for (int part = 0; part < kParts; part += kRegisters) {
    add_products<kRows, kRegisters, kIsStream>(codes, packed, depth, part, totals);
  }
  for (int b = 0; b < kBlocks; ++b) {
    finish_block(weights, rows, row, kRows, block + b,
                 [&](std::int64_t m) -> const BlockSums& { return totals[b][m]; });
  }
}

template <int kRows, bool kIsStream>
void multiply_rows(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t row,
                   std::int64_t begin, std::int64_t end) {
  constexpr int kBlocks =
      kIsStream ? 1 : std::max(columns_at_once(kRows) / static_cast<int>(kBlockColumns), 1);
  std::int64_t block = begin;
  for (; block + kBlocks <= end; block += kBlocks) {
    multiply_tile<kRows, kBlocks, kIsStream>(weights, rows, row, block);
  }
  for (; block < end; ++block) multiply_tile<kRows, 1, kIsStream>(weights, rows, row, block);
}

using MultiplyRows = void (*)(const IntegerWeights&, const IntegerRows&, std::int64_t row,
                              std::int64_t begin, std::int64_t end);

template <int kStreamRows, int... kRows>
constexpr std::array<MultiplyRows, sizeof...(kRows)> by_rows(std::integer_sequence<int, kRows...>) {
  return {multiply_rows<kRows + 1, (kRows < kStreamRows)>...};
}

// Up to ``kStreamRows`` rows read the weights block by block, as one stream from memory; more rows
// read several blocks at a time.
template <int kStreamRows = 0>
void multiply(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t begin,
              std::int64_t end) noexcept {
  static constexpr auto kByRows =
      by_rows<kStreamRows>(std::make_integer_sequence<int, kMaximumRows>{});
  // Divides the rows equally, because a small last part would read the weights for few rows.
  const std::int64_t parts = (rows.count + kMaximumRows - 1) / kMaximumRows;
  for (std::int64_t part = 0, row = 0; part < parts; ++part) {
    const std::int64_t count = (rows.count - row + parts - part - 1) / (parts - part);
    kByRows[static_cast<std::size_t>(count - 1)](weights, rows, row, begin, end);
    row += count;
  }
}

}  // namespace
}  // namespace skipdec
