// Products of int8 weights and activations that are quantised row by row (W8A8).
//
//   row_scale = max|x| / 127, q = uint8(round_half_even(x / row_scale) + 128)
//   y = (float(Σ q·w − offset) · scale) · row_scale, + bias, activation, + residual
//
// A gated product (operators/columns.h) is activation(y of the gate) · y of the other column.
//
// The bits are the same on every instruction set: sums are integers, and each float operation
// rounds separately. A row with NaN or infinity has row_scale NaN, so its whole result is NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operators/columns.h"
#include "processor/instruction_set.h"

namespace skipdec {

constexpr std::int64_t kBlockColumns = Columns::kBlock;
constexpr std::int64_t kDepthMultiple = 64;  // divides the depth of packed weights
constexpr std::int64_t kDepthStep = 4;       // contiguous codes of a column

// Weights [K, N] of a product. The caller owns all memory.
struct IntegerWeights {
  std::int64_t padded_depth = 0;         // Kp: K rounded up to 64
  const std::int8_t* codes = nullptr;    // [blocks, Kp / 4, 16, 4], zeros beyond K and N
  const float* scale = nullptr;          // [N]
  const std::int32_t* offset = nullptr;  // [N]: 128 · Σ_k codes
  Columns columns;                       // N

  std::int64_t blocks() const { return columns.blocks(); }
};

struct IntegerRows : ProductRows {
  std::uint8_t* codes = nullptr;  // IntegerKernels::code_bytes, 64-byte aligned
  float* scale = nullptr;         // [M]
};

// Kernels of one instruction set. Calls on disjoint ranges may run concurrently.
struct IntegerKernels {
  std::size_t (*code_bytes)(std::int64_t rows, std::int64_t padded_depth);
  // Computes codes and scales of rows begin … end - 1.
  void (*quantize)(const IntegerWeights&, const IntegerRows&, std::int64_t begin,
                   std::int64_t end) noexcept;
  // Computes all rows of the result in blocks begin … end - 1 of 16 columns, after all rows are
  // quantised. In a gated product, begin and end are even.
  void (*multiply)(const IntegerWeights&, const IntegerRows&, std::int64_t begin,
                   std::int64_t end) noexcept;
};

// Returns the kernels of ``set``, or of the next simpler set that has kernels, for a call with
// ``rows``. Checks the kernels for AMX once per process before they are used, because few test
// machines have AMX.
const IntegerKernels& integer_kernels(InstructionSet set, std::int64_t rows);

}  // namespace skipdec
