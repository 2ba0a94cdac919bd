// The columns of a product: their order in packed weights, the operations after their sums, and
// the rows of a call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "operators/activation.h"

namespace skipdec {

class CallContext;
class NodeInfo;
struct Tensor;

// N columns in blocks of 16, which are contiguous in packed weights. In a gated product, whose
// first N / 2 columns are the gate, blocks of both halves alternate: 16 columns of the gate, then
// the 16 columns that are multiplied by them. The blocks of 40 gated columns: 0 … 15, 20 … 35, 16 …
// 19, 36 … 39.
struct Columns {
  static constexpr std::int64_t kBlock = 16;

  std::int64_t count = 0;       // N
  const float* bias = nullptr;  // [N] or nullptr
  Activation activation = Activation::kNone;
  bool is_gated = false;  // y = activation(gate) · other

  // Returns the number of columns of the result: N, or N / 2 of a gated product.
  std::int64_t results() const { return is_gated ? count / 2 : count; }
  std::int64_t blocks() const { return (results() + kBlock - 1) / kBlock * (is_gated ? 2 : 1); }
  bool is_multiplier(std::int64_t block) const { return is_gated && block % 2 == 1; }
  // Returns the block's first column in the result.
  std::int64_t place(std::int64_t block) const { return (is_gated ? block / 2 : block) * kBlock; }
  // Returns the block's first column in bias and scales, which are not rearranged.
  std::int64_t first(std::int64_t block) const {
    return place(block) + (is_multiplier(block) ? count / 2 : 0);
  }
  // Returns how many columns the block has, from 1 to 16.
  int size(std::int64_t block) const {
    return static_cast<int>(std::min(results() - place(block), kBlock));
  }
};

// Returns ``count`` columns without bias, with the attributes "activation" and "gated" of ``node``.
// Throws OperatorError if they do not fit.
Columns columns_of(const NodeInfo& node, std::int64_t count);

// Returns the node's ``input``, a bias for all columns, or nullptr. Throws OperatorError if it has
// another shape.
const float* bias_of(const NodeInfo& node, std::size_t input, const Columns& columns);

// The rows that a call multiplies. The caller owns all memory.
struct ProductRows {
  std::int64_t count = 0;           // M
  std::int64_t depth = 0;           // K
  const float* values = nullptr;    // [M, K]
  const float* residual = nullptr;  // [M, N] or nullptr; may be result; not in a gated product
  float* result = nullptr;          // [M, columns.results()]
};

// Returns the rows of a call whose inputs are x [..., K], the weights, a bias at index ``bias``,
// and a residual. Throws OperatorError unless the weights have K rows (``fits``), a bias is in
// ``columns``, and a residual has the shape of the result of a product that is not gated.
ProductRows product_rows(const CallContext& call, const Columns& columns, const Tensor& x,
                         std::size_t bias, bool fits);

// Returns how many blocks of 16 columns, a multiple of ``together``, a task multiplies by ``rows``
// rows. A block takes as long as ``size`` weights of int8. Threads take tasks as they become free,
// so a thread on a busy core delays the others by at most one task: blocks of size ``most``, or a
// sixteenth of small weights. Small products are a single task.
std::int64_t blocks_of_a_task(std::int64_t blocks, std::int64_t size, std::int64_t rows,
                              std::int64_t most, std::int64_t together);

}  // namespace skipdec
