// Products of int4 or int8 weights and activations, both quantised in blocks (W4A8, W8A8).
//
// A block is block_size inputs of a column of the weights, or of a row of x:
//
//   x_scale[m, b] = max|x| / 127 over the block, and 0 where that is below 2^-126
//   q             = int8(round_half_even(x · (1 / x_scale))), 0 where x_scale is 0
//   y[m, n]      += float(Σ q · w) · (scale[b, n] · x_scale[m, b]), b = 0, 1, 2, …
//
// where w is a weight's integer: code − 8 for a code of 4 bits, and the code itself for one of 8.
// It then adds the bias, applies the activation and adds the residual; a gated product
// (operators/columns.h) is activation(y of the gate) · y of the other column. The bits are the same
// on every instruction set: sums inside a block are integers, and blocks are added in order, each
// by one fused multiply-add. A row with NaN or infinity has x_scale NaN, so its whole result is
// NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operators/columns.h"
#include "processor/instruction_set.h"
#include "simd/element.h"

namespace skipdec {

constexpr std::int64_t kPanelColumns = Columns::kBlock;
constexpr std::int64_t kUnitDepth = 32;  // inputs that kernels process together

// Returns the bytes of the codes of ``depth`` inputs of 16 columns.
constexpr std::int64_t panel_bytes(std::int64_t depth, int bits) {
  return depth * kPanelColumns * bits / 8;
}

// Weights [K, N] of a product. The caller owns all memory.
struct BlockWeights {
  int bits = 4;                 // of a code: 4 or 8
  std::int64_t block_size = 0;  // 32, 64 or 128
  std::int64_t blocks = 0;      // K / block_size, rounded up
  Columns columns;              // N
  // 4 bits: [panels, K / 8, 16, 4] with K = blocks · block_size; a byte has input k in its low four
  // bits and input k + 4 in the high ones. 8 bits: int8 [panels, K / 4, 16, 4].
  const std::uint8_t* codes = nullptr;
  const Bfloat16* scale = nullptr;  // [panels, blocks, 16]

  std::int64_t padded_depth() const { return blocks * block_size; }
  std::int64_t panels() const { return columns.blocks(); }
};

// Rows are quantised in groups of R, the number that a kernel multiplies together; the data of each
// block of a group is contiguous. The last group may be smaller.
struct BlockRows : ProductRows {
  std::int64_t group = 0;              // R
  std::int8_t* codes = nullptr;        // [M / R, blocks, R, block_size], 64-byte aligned
  float* scale = nullptr;              // [M / R, blocks, R]
  std::int32_t* correction = nullptr;  // [M / R, blocks, R]: where the kernel's sums start

  // Returns the number of bytes of codes. They include one more block of a group after the last,
  // which kernels may read but do not use.
  std::size_t code_bytes(const BlockWeights& weights) const {
    return static_cast<std::size_t>((count * weights.blocks + group) * weights.block_size + 64);
  }
  std::int64_t groups() const { return (count + group - 1) / group; }
  std::int64_t rows_of(std::int64_t index) const {
    return index + 1 < groups() ? group : count - index * group;
  }
};

// Kernels of one instruction set and number of bits. Calls on disjoint ranges may run concurrently.
struct BlockKernels {
  std::int64_t group;  // R
  // Computes codes, scales and corrections of groups begin … end - 1.
  void (*quantize)(const BlockWeights&, const BlockRows&, std::int64_t begin,
                   std::int64_t end) noexcept;
  // Computes all rows of the result in panels begin … end - 1 of 16 columns, after all rows are
  // quantised. In a gated product, begin and end are even.
  void (*multiply)(const BlockWeights&, const BlockRows&, std::int64_t begin,
                   std::int64_t end) noexcept;
};

// Returns the kernels of ``set``, or of the next simpler set that has kernels, for codes of
// ``bits`` and a call with ``rows``.
const BlockKernels& block_kernels(InstructionSet set, int bits, std::int64_t rows);

}  // namespace skipdec
