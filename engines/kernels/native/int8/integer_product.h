// Products of int8 weights and activations that are quantised row by row (W8A8).
//
//   row_scale = max|x| / 127, q = uint8(round_half_even(x / row_scale) + 128)
//   y = (float(Σ q·w − offset) · scale) · row_scale, + bias, activation, + residual
//
// The same bits on every instruction set: sums are integers, and each float operation rounds by
// itself. A row with NaN or infinity has row_scale NaN, and so has all of its result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operators/activation.h"
#include "processor/instruction_set.h"

namespace skipdec {

constexpr std::int64_t kBlockColumns = 16;   // that lie together in packed weights
constexpr std::int64_t kDepthMultiple = 64;  // to which the depth of packed weights is rounded up
constexpr std::int64_t kDepthStep = 4;       // codes of a column that lie together

// Weights [K, N] of a product. All pointers are the caller's.
struct IntegerWeights {
  std::int64_t depth = 0;                // K
  std::int64_t padded_depth = 0;         // Kp: K rounded up to 64
  std::int64_t columns = 0;              // N
  const std::int8_t* codes = nullptr;    // [ceil(N / 16), Kp / 4, 16, 4], zeros beyond K and N
  const float* scale = nullptr;          // [N]
  const std::int32_t* offset = nullptr;  // [N]: 128 · Σ_k codes
  const float* bias = nullptr;           // [N] or none
  Activation activation = Activation::kNone;

  std::int64_t blocks() const { return (columns + kBlockColumns - 1) / kBlockColumns; }
};

// Rows of a call. All pointers are the caller's.
struct IntegerRows {
  std::int64_t count = 0;           // M
  std::int64_t depth = 0;           // K
  const float* values = nullptr;    // [M, K]
  std::uint8_t* codes = nullptr;    // IntegerKernels::code_bytes, 64-byte aligned
  float* scale = nullptr;           // [M]
  const float* residual = nullptr;  // [M, N] or none; may be result
  float* result = nullptr;          // [M, N]
};

// How one instruction set does it. Calls on disjoint ranges may run at the same time.
struct IntegerKernels {
  std::size_t (*code_bytes)(std::int64_t rows, std::int64_t padded_depth);
  // Make codes and scales of rows begin … end - 1.
  void (*quantize)(const IntegerWeights&, const IntegerRows&, std::int64_t begin,
                   std::int64_t end) noexcept;
  // Make all rows of the result, in blocks begin … end - 1 of 16 columns, when all is quantised.
  void (*multiply)(const IntegerWeights&, const IntegerRows&, std::int64_t begin,
                   std::int64_t end) noexcept;
};

// The kernels of ``set``, or of the next plainer one that has some, for a call with ``rows``. Those
// of AMX, which few machines that test them have, must once have multiplied right in this process.
const IntegerKernels& integer_kernels(InstructionSet set, std::int64_t rows);

}  // namespace skipdec
