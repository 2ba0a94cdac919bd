#include "floats/float_linear.h"

#include <algorithm>

#include "operators/scratch.h"

namespace skipdec {
namespace {

enum Input : std::size_t { kX, kWeight, kBias };

// Returns the bytes of a weight of ``type``; 0 if no weight has it.
std::int64_t size_of(abi::ElementType type) {
  if (type == abi::ElementType::kFloat) return 4;
  return type == abi::ElementType::kFloat16 || type == abi::ElementType::kBfloat16 ? 2 : 0;
}

FloatKernels::Multiply multiply_of(const FloatKernels& kernels, abi::ElementType type) {
  if (type == abi::ElementType::kFloat) return kernels.multiply_float32;
  return type == abi::ElementType::kFloat16 ? kernels.multiply_float16 : kernels.multiply_bfloat16;
}

FloatWeights checked_weights(const NodeInfo& node) {
  const Tensor weight = node.constant(kWeight);
  FloatWeights weights;
  weights.columns = columns_of(node, node.attribute("N", std::int64_t{0}));
  require(weights.columns.count > 0, "N must be the number of columns, 1 or more");
  require(static_cast<bool>(weight), "weight must be an initialiser");
  weights.size = size_of(weight.type);
  require(weights.size > 0, "weight must be float32, float16 or bfloat16");
  require(weight.rank == 3 && weight.dims[0] == weights.blocks() && weight.dims[1] > 0 &&
              weight.dims[2] == FloatWeights::kBlockColumns,
          "weight must be packed: [N / 16, K, 16], N rounded up to 16");
  weights.columns.bias = bias_of(node, kBias, weights.columns);
  weights.depth = weight.dims[1];
  weights.values = weight.data;
  return weights;
}

// Returns how many panels of rows a task packs: about 32768 elements, which take about 10 µs.
std::int64_t panels_of_a_task(std::int64_t panels, std::int64_t elements) {
  constexpr std::int64_t kElements = 32768;
  return std::max<std::int64_t>(1, kElements * panels / elements);
}

// Returns the number of rows that a thread multiplies by all weights, or 0 if threads divide the
// columns instead. Small weights stay in each thread's L2 cache, while many packed rows would not.
std::int64_t rows_of_a_task(const FloatWeights& weights, std::int64_t rows) {
  constexpr std::int64_t kCached = 256 * 1024, kRows = 48;
  const std::int64_t bytes = weights.blocks() * weights.block_bytes();
  return bytes <= kCached && rows >= 2 * kRows && !is_small(bytes, rows) ? kRows : 0;
}

}  // namespace

FloatLinear::FloatLinear(const NodeInfo& node)
    : kernels_(float_kernels(chosen_instruction_set())),
      weights_(checked_weights(node)),
      multiply_(multiply_of(kernels_, node.constant(kWeight).type)) {}

void FloatLinear::compute(const CallContext& call) const {
  const Tensor x = call.input(kX);
  FloatRows rows{product_rows(call, weights_.columns, x, kBias, x.last() == weights_.depth)};
  if (rows.count > 0) run(call, rows);
}

void FloatLinear::run(const CallContext& call, FloatRows& rows) const {
  if (const std::int64_t step = rows_of_a_task(weights_, rows.count); step > 0) {
    run_by_rows(call, rows, step);
    return;
  }
  static thread_local Scratch scratch;
  if (const std::size_t floats = kernels_.packed_floats(rows.count, weights_.depth); floats > 0) {
    rows.packed = static_cast<float*>(scratch.reserve(floats * sizeof(float)));
    const std::int64_t panels = kernels_.panels(rows.count);
    call.parallel_for(
        panels, panels_of_a_task(panels, rows.count * weights_.depth),
        [&](std::int64_t begin, std::int64_t end) { kernels_.pack(weights_, rows, begin, end); });
  }
  constexpr std::int64_t kBytes = 128 * 1024, kTile = 4;
  call.parallel_for(
      weights_.blocks(),
      blocks_of_a_task(weights_.blocks(), weights_.block_bytes(), rows.count, kBytes, kTile),
      [&](std::int64_t begin, std::int64_t end) { multiply_(weights_, rows, begin, end); });
}

void FloatLinear::run_by_rows(const CallContext& call, const FloatRows& rows,
                              std::int64_t step) const {
  static thread_local Scratch scratch;
  constexpr std::size_t kLine = 16;
  const std::size_t floats =
      (kernels_.packed_floats(step, weights_.depth) + kLine - 1) / kLine * kLine;
  const auto tasks = static_cast<std::size_t>((rows.count + step - 1) / step);
  auto* packed = static_cast<float*>(scratch.reserve(tasks * floats * sizeof(float)));
  const std::int64_t results = weights_.columns.results();
  call.parallel_for(rows.count, step, [&](std::int64_t begin, std::int64_t end) noexcept {
    FloatRows part = rows;
    part.count = end - begin;
    part.values += begin * weights_.depth;
    part.packed = packed + static_cast<std::size_t>(begin / step) * floats;
    if (part.residual != nullptr) part.residual += begin * results;
    part.result += begin * results;
    if (part.count > 1) kernels_.pack(weights_, part, 0, kernels_.panels(part.count));
    multiply_(weights_, part, 0, weights_.blocks());
  });
}

}  // namespace skipdec
