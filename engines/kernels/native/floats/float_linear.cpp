#include "floats/float_linear.h"

#include <algorithm>

#include "operators/scratch.h"

namespace skipdec {
namespace {

enum Input : std::size_t { kX, kWeight, kBias, kResidual };

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

// Threads take parts as they become free, so a thread on a busy core delays the others by at most
// one part: about 128 KB of weights, or a sixteenth of small weights, in complete tiles. Small
// products are a single part; a weight takes as long as its number of bytes in int8 weights.
std::int64_t blocks_of_a_task(const FloatWeights& weights, std::int64_t rows) {
  constexpr std::int64_t kBytes = 128 * 1024, kTasks = 16, kTile = 4;
  if (is_small(weights.blocks() * weights.block_bytes(), rows)) return weights.blocks();
  const std::int64_t of_bytes = kBytes / weights.block_bytes();
  const std::int64_t blocks = std::min(of_bytes, weights.blocks() / kTasks);
  return std::max(std::int64_t{1}, (blocks + kTile - 1) / kTile) * kTile;
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
  const Tensor x = call.input(kX), residual = call.input(kResidual);
  require(weights_.columns.bias != nullptr || !call.input(kBias), "bias must be an initialiser");
  require(x.rank > 0 && x.last() == weights_.depth, "x must be [..., K] with the K of weight");
  Tensor y = x;
  y.dims[y.rank - 1] = weights_.columns.results();
  require_residual(weights_.columns, residual, y);
  FloatRows rows;
  rows.count = x.size() / weights_.depth;
  rows.values = x.as<float>();
  rows.residual = residual.as<float>();
  rows.result = call.output(0, y.dims, y.rank).as<float>();
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
  call.parallel_for(
      weights_.blocks(), blocks_of_a_task(weights_, rows.count),
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
    FloatRows part;
    part.count = end - begin;
    part.values = rows.values + begin * weights_.depth;
    part.packed = packed + static_cast<std::size_t>(begin / step) * floats;
    part.residual = rows.residual == nullptr ? nullptr : rows.residual + begin * results;
    part.result = rows.result + begin * results;
    if (part.count > 1) kernels_.pack(weights_, part, 0, kernels_.panels(part.count));
    multiply_(weights_, part, 0, weights_.blocks());
  });
}

}  // namespace skipdec
