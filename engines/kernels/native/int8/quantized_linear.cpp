#include "int8/quantized_linear.h"

#include <algorithm>

#include "operators/scratch.h"

namespace skipdec {
namespace {

constexpr std::size_t kX = 0, kWeight = 1, kScale = 2, kOffset = 3, kBias = 4;

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

// Returns the number of rows that take about 5 µs, so that one row or a few short ones use one
// thread.
std::int64_t rows_of_a_task(const IntegerRows& rows) {
  constexpr std::int64_t kElements = 16384;
  return std::max<std::int64_t>(1, kElements / rows.depth);
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
  const Tensor x = call.input(kX);
  const std::int64_t beyond = weights_.padded_depth - x.last();
  const bool fits = beyond >= 0 && beyond < kDepthMultiple;
  IntegerRows rows{product_rows(call, weights_.columns, x, kBias, fits)};
  if (rows.count > 0) run(call, rows);
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
  constexpr std::int64_t kBytes = 256 * 1024;  // which the L2 cache holds for all rows
  constexpr std::int64_t kTogether = 4;        // blocks that kernels read together
  call.parallel_for(
      weights_.blocks(),
      blocks_of_a_task(weights_.blocks(), weights_.padded_depth * kBlockColumns, rows.count, kBytes,
                       kTogether),
      [&](std::int64_t begin, std::int64_t end) { kernels.multiply(weights_, rows, begin, end); });
}

}  // namespace skipdec
