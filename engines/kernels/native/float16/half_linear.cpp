#include "float16/half_linear.h"

#include <algorithm>

#include "operators/scratch.h"

namespace skipdec {
namespace {

enum Input : std::size_t { kX, kWeight, kBias, kResidual };

HalfWeights checked_weights(const NodeInfo& node) {
  const Tensor weight = node.constant(kWeight);
  HalfWeights weights;
  weights.columns = columns_of(node, node.attribute("N", std::int64_t{0}));
  require(weights.columns.count > 0, "N must be the number of columns, 1 or more");
  require(static_cast<bool>(weight), "weight must be an initialiser");
  require(weight.type == abi::ElementType::kFloat16 || weight.type == abi::ElementType::kBfloat16,
          "weight must be float16 or bfloat16");
  require(weight.rank == 3 && weight.dims[0] == weights.blocks() && weight.dims[1] > 0 &&
              weight.dims[2] == HalfWeights::kBlockColumns,
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

// Threads take parts when they become free, so a thread on a busy core delays the others by at most
// one part: about 128 KB of weights, or a sixteenth of small ones, in complete tiles. Small
// products are one part; an element takes twice as long as one of int8.
std::int64_t blocks_of_a_task(const HalfWeights& weights, std::int64_t rows) {
  constexpr std::int64_t kBytes = 128 * 1024, kTasks = 16, kTile = 4;
  const std::int64_t elements = weights.blocks() * weights.depth * HalfWeights::kBlockColumns;
  if (is_small(2 * elements, rows)) return weights.blocks();
  const std::int64_t of_bytes = kBytes / (weights.depth * HalfWeights::kBlockColumns * 2);
  const std::int64_t blocks = std::min(of_bytes, weights.blocks() / kTasks);
  return std::max(std::int64_t{1}, (blocks + kTile - 1) / kTile) * kTile;
}

}  // namespace

HalfLinear::HalfLinear(const NodeInfo& node)
    : kernels_(half_kernels(chosen_instruction_set())), weights_(checked_weights(node)) {
  multiply_ = node.constant(kWeight).type == abi::ElementType::kFloat16
                  ? kernels_.multiply_float16
                  : kernels_.multiply_bfloat16;
}

void HalfLinear::compute(const CallContext& call) const {
  const Tensor x = call.input(kX), residual = call.input(kResidual);
  require(weights_.columns.bias != nullptr || !call.input(kBias), "bias must be an initialiser");
  require(x.rank > 0 && x.last() == weights_.depth, "x must be [..., K] with the K of weight");
  Tensor y = x;
  y.dims[y.rank - 1] = weights_.columns.results();
  require_residual(weights_.columns, residual, y);
  HalfRows rows;
  rows.count = x.size() / weights_.depth;
  rows.values = x.as<float>();
  rows.residual = residual.as<float>();
  rows.result = call.output(0, y.dims, y.rank).as<float>();
  if (rows.count > 0) run(call, rows);
}

void HalfLinear::run(const CallContext& call, HalfRows& rows) const {
  static thread_local Scratch scratch;
  if (rows.count > 1) {
    rows.packed = static_cast<float*>(
        scratch.reserve(kernels_.packed_floats(rows.count, weights_.depth) * sizeof(float)));
    const std::int64_t panels = kernels_.panels(rows.count);
    call.parallel_for(
        panels, panels_of_a_task(panels, rows.count * weights_.depth),
        [&](std::int64_t begin, std::int64_t end) { kernels_.pack(weights_, rows, begin, end); });
  }
  call.parallel_for(
      weights_.blocks(), blocks_of_a_task(weights_, rows.count),
      [&](std::int64_t begin, std::int64_t end) { multiply_(weights_, rows, begin, end); });
}

}  // namespace skipdec
