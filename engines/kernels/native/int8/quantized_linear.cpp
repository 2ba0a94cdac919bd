#include "int8/quantized_linear.h"

#include <algorithm>

#include "operators/scratch.h"

namespace skipdec {
namespace {

constexpr std::size_t kX = 0, kWeight = 1, kScale = 2, kOffset = 3, kBias = 4, kResidual = 5;

bool has_shape(const Tensor& tensor, std::int64_t size) {
  return tensor.rank == 1 && tensor.dims[0] == size;
}

// True if the last block matches the offsets and is zero beyond the last column, which detects
// weights in another packing. Checking all blocks would take seconds.
bool is_packed(const IntegerWeights& weights) {
  const std::int64_t block = weights.blocks() - 1;
  const std::int8_t* codes = weights.codes + block * weights.padded_depth * kBlockColumns;
  std::array<std::int64_t, kBlockColumns> sums{};
  std::array<bool, kBlockColumns> is_zero{};
  is_zero.fill(true);
  for (std::int64_t at = 0; at < weights.padded_depth * kBlockColumns; ++at) {
    const auto column = static_cast<std::size_t>(at / 4 % kBlockColumns);
    sums[column] += codes[at];
    is_zero[column] = is_zero[column] && codes[at] == 0;
  }
  for (std::int64_t i = 0; i < kBlockColumns; ++i) {
    const auto column = static_cast<std::size_t>(i);
    const std::int64_t n = weights.columns.first(block) + i;
    const bool exists = i < weights.columns.size(block);
    if (exists ? 128 * sums[column] != weights.offset[n] : !is_zero[column]) {
      return false;
    }
  }
  return true;
}

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns the number of rows that take about 5 µs, so that one row or a few short ones use one
// thread.
std::int64_t rows_of_a_task(const IntegerRows& rows) {
  constexpr std::int64_t kElements = 16384;
  return std::max<std::int64_t>(1, kElements / rows.depth);
}

// Threads take parts as they become free, so a thread on a busy core delays the others by at most
// one part: about 256 KB of weights, which the L2 cache holds for all rows, or a sixteenth of small
// weights. Parts are multiples of four blocks, which kernels read together. Small products are a
// single part.
std::int64_t blocks_of_a_task(const IntegerWeights& weights, std::int64_t rows) {
  constexpr std::int64_t kBytes = 256 * 1024, kTasks = 16, kTogether = 4;
  const std::int64_t elements = weights.blocks() * weights.padded_depth * kBlockColumns;
  if (is_small(elements, rows)) return weights.blocks();
  const std::int64_t of_bytes = kBytes / (weights.padded_depth * kBlockColumns);
  const std::int64_t blocks = std::min(of_bytes, weights.blocks() / kTasks);
  return rounded_up(std::max<std::int64_t>(1, blocks), kTogether);
}

}  // namespace

QuantizedLinear::QuantizedLinear(const NodeInfo& node)
    : instruction_set_(chosen_instruction_set()) {
  const Tensor weight = node.constant(kWeight), scale = node.constant(kScale),
               offset = node.constant(kOffset);
  require(weight && scale && offset, "weight, scale and offset must be initialisers");
  const std::int64_t depth = weight.rank == 4 ? weight.dims[1] * 4 : 0;
  require(depth > 0 && depth % kDepthMultiple == 0 && weight.dims[0] > 0 &&
              weight.dims[2] == kBlockColumns && weight.dims[3] == 4,
          "weight must be packed: [N / 16, K / 4, 16, 4], N and K rounded up to 16 and 64");
  weights_.padded_depth = depth;
  weights_.columns = columns_of(node, scale.size());
  require(scale.rank == 1 && weights_.blocks() == weight.dims[0],
          "scale must be [N], for the N columns of weight");
  require(has_shape(offset, weights_.columns.count), "offset must have as many elements as scale");
  weights_.columns.bias = bias_of(node, kBias, weights_.columns);
  weights_.codes = weight.as<std::int8_t>();
  weights_.scale = scale.as<float>();
  weights_.offset = offset.as<std::int32_t>();
  require(is_packed(weights_),
          "weight and offset disagree: offset must be 128 times the sums of "
          "the columns of weight, and weight packed as pack_int8 does");
}

void QuantizedLinear::compute(const CallContext& call) const {
  const Tensor x = call.input(kX), residual = call.input(kResidual);
  require(weights_.columns.bias != nullptr || !call.input(kBias), "bias must be an initialiser");
  require(x.rank > 0 && rounded_up(x.last(), kDepthMultiple) == weights_.padded_depth,
          "x must be [..., K] with the K of weight");
  Tensor y = x;
  y.dims[y.rank - 1] = weights_.columns.results();
  IntegerRows rows;
  rows.depth = x.last();
  rows.count = x.size() / rows.depth;
  rows.values = x.as<float>();
  rows.residual = residual.as<float>();
  rows.result = call.output(0, y.dims, y.rank).as<float>();
  if (rows.count == 0) return;
  require_residual(weights_.columns, residual, y);
  run(call, rows);
}

void QuantizedLinear::run(const CallContext& call, IntegerRows& rows) const {
  static thread_local Scratch scratch;
  const IntegerKernels& kernels = integer_kernels(instruction_set_, rows.count);
  const std::size_t code_bytes = kernels.code_bytes(rows.count, weights_.padded_depth);
  const std::size_t scale_bytes = static_cast<std::size_t>(rows.count) * sizeof(float);
  rows.codes = static_cast<std::uint8_t*>(scratch.reserve(code_bytes + scale_bytes));
  rows.scale = reinterpret_cast<float*>(rows.codes + code_bytes);
  call.parallel_for(rows.count, rows_of_a_task(rows), [&](std::int64_t begin, std::int64_t end) {
    kernels.quantize(weights_, rows, begin, end);
  });
  call.parallel_for(
      weights_.blocks(), blocks_of_a_task(weights_, rows.count),
      [&](std::int64_t begin, std::int64_t end) { kernels.multiply(weights_, rows, begin, end); });
}

}  // namespace skipdec
