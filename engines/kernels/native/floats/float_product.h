// Products of float32 rows and weights of float32, float16 or bfloat16, with float32 sums.
//
// Each result is one chain of fused multiply-adds over k = 0 … K - 1 from 0, so its bits depend
// only on its row and its column, not on the instruction set, the other rows or the threads. NaN
// and infinity follow IEEE 754.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operators/columns.h"
#include "simd/tables.h"

namespace skipdec {

// Weights [K, N] of a product. The caller owns all memory.
struct FloatWeights {
  static constexpr std::int64_t kBlockColumns = Columns::kBlock;

  std::int64_t depth = 0;        // K
  Columns columns;               // N
  const void* values = nullptr;  // [blocks, K, 16], zeros beyond N
  std::int64_t size = 0;         // of a weight, in bytes

  std::int64_t blocks() const { return columns.blocks(); }
  std::int64_t block_bytes() const { return depth * kBlockColumns * size; }
};

struct FloatRows : ProductRows {
  float* packed = nullptr;  // FloatKernels::packed_floats, 64-byte aligned
};

// Kernels of one instruction set. Calls on disjoint ranges may run concurrently.
struct FloatKernels {
  using Multiply = void (*)(const FloatWeights&, const FloatRows&, std::int64_t begin,
                            std::int64_t end) noexcept;

  // Returns the number of panels. A panel holds the rows that are multiplied together, as many as
  // fit into registers. Panels of few rows are not packed.
  std::int64_t (*panels)(std::int64_t rows);
  std::size_t (*packed_floats)(std::int64_t rows, std::int64_t depth);
  // Packs the rows of panels begin … end - 1.
  void (*pack)(const FloatWeights&, const FloatRows&, std::int64_t begin,
               std::int64_t end) noexcept;
  // Computes all rows of the result in blocks begin … end - 1 of 16 columns, after all rows are
  // packed. In a gated product, begin and end are even.
  Multiply multiply_float32;
  Multiply multiply_float16;
  Multiply multiply_bfloat16;
};

SKIPDEC_TABLES(const FloatKernels&, float_kernels)

}  // namespace skipdec
