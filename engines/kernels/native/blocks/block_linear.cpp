#include "blocks/block_linear.h"

#include <algorithm>

#include "operators/scratch.h"

namespace skipdec {
namespace {

constexpr std::size_t kX = 0, kWeight = 1, kScale = 2, kBias = 3;

bool has_shape(const Tensor& tensor, std::array<std::int64_t, 4> dims, std::size_t rank) {
  return tensor.rank == rank && std::equal(dims.begin(), dims.begin() + rank, tensor.dims.begin());
}

// True if codes and scales beyond the last panel's columns represent 0, which detects weights in
// another packing.
bool is_packed(const BlockWeights& weights) {
  const std::uint8_t zeros = weights.bits == 8 ? 0 : 0x88;
  const std::int64_t panel = weights.panels() - 1, size = weights.columns.size(panel);
  const std::int64_t bytes = panel_bytes(weights.padded_depth(), weights.bits);
  const std::uint8_t* codes = weights.codes + panel * bytes;
  for (std::int64_t at = 0; at < bytes; ++at) {
    if (at / 4 % kPanelColumns >= size && codes[at] != zeros) return false;
  }
  const Bfloat16* scale = weights.scale + panel * weights.blocks * kPanelColumns;
  for (std::int64_t at = 0; at < weights.blocks * kPanelColumns; ++at) {
    if (at % kPanelColumns >= size && scale[at].bits != 0) return false;
  }
  return true;
}

// Returns the number of groups that take about 10 µs, so that one row or a few short ones use one
// thread.
std::int64_t groups_of_a_task(const BlockRows& rows) {
  constexpr std::int64_t kElements = 32768;
  return std::max<std::int64_t>(1, kElements / (rows.depth * rows.group));
}

}  // namespace

template <int kBits>
BlockLinear<kBits>::BlockLinear(const NodeInfo& node) : instruction_set_(chosen_instruction_set()) {
  constexpr std::int64_t kInputs = 32 / kBits;  // of a column, in four bytes
  const Tensor weight = node.constant(kWeight), scale = node.constant(kScale);
  require(weight && scale, "weight and scale must be initialisers");
  weights_.bits = kBits;
  weights_.block_size = node.attribute("block_size", std::int64_t{0});
  weights_.columns = columns_of(node, node.attribute("N", std::int64_t{0}));
  const std::int64_t size = weights_.block_size, panels = weights_.panels();
  require(size == 32 || size == 64 || size == 128, "block_size must be 32, 64 or 128");
  require(weights_.columns.count > 0, "N must be the number of columns of weight, at least 1");
  weights_.blocks = weight.rank == 4 ? weight.dims[1] * kInputs / size : 0;
  require(weights_.blocks > 0 &&
              has_shape(weight, {panels, weights_.padded_depth() / kInputs, kPanelColumns, 4}, 4),
          kBits == 8
              ? "weight must be packed: [N / 16, K / 4, 16, 4], N and K rounded up to 16 and "
                "block_size"
              : "weight must be packed: [N / 16, K / 8, 16, 4], N and K rounded up to 16 and "
                "block_size");
  require(has_shape(scale, {panels, weights_.blocks, kPanelColumns}, 3),
          "scale must be packed: [N / 16, K / block_size, 16]");
  weights_.columns.bias = bias_of(node, kBias, weights_.columns);
  weights_.codes = reinterpret_cast<const std::uint8_t*>(weight.as<std::int8_t>());
  weights_.scale = scale.as<Bfloat16>();
  require(is_packed(weights_),
          "weight and scale must be those of 0 beyond column N, as packing.py makes them");
}

template <int kBits>
void BlockLinear<kBits>::compute(const CallContext& call) const {
  const Tensor x = call.input(kX);
  const std::int64_t beyond = weights_.padded_depth() - x.last();
  const bool fits = beyond >= 0 && beyond < weights_.block_size;
  BlockRows rows{product_rows(call, weights_.columns, x, kBias, fits)};
  if (rows.count > 0) run(call, rows);
}

template <int kBits>
void BlockLinear<kBits>::run(const CallContext& call, BlockRows& rows) const {
  static thread_local Scratch scratch;
  const BlockKernels& kernels = block_kernels(instruction_set_, kBits, rows.count);
  rows.group = kernels.group;
  const auto blocks = static_cast<std::size_t>(rows.count * weights_.blocks);
  const std::size_t code_bytes = rows.code_bytes(weights_);
  void* memory = scratch.reserve(code_bytes + blocks * (sizeof(float) + sizeof(std::int32_t)));
  rows.codes = static_cast<std::int8_t*>(memory);
  rows.scale = reinterpret_cast<float*>(rows.codes + code_bytes);
  rows.correction = reinterpret_cast<std::int32_t*>(rows.scale + blocks);
  call.parallel_for(
      rows.groups(), groups_of_a_task(rows),
      [&](std::int64_t begin, std::int64_t end) { kernels.quantize(weights_, rows, begin, end); });
  constexpr std::int64_t kElements = 256 * 1024;  // 128 to 256 KB
  const std::int64_t together = weights_.columns.is_gated ? 2 : 1;
  call.parallel_for(
      weights_.panels(),
      blocks_of_a_task(weights_.panels(), weights_.padded_depth() * kPanelColumns, rows.count,
                       kElements, together),
      [&](std::int64_t begin, std::int64_t end) { kernels.multiply(weights_, rows, begin, end); });
}

template class BlockLinear<4>;
template class BlockLinear<8>;

}  // namespace skipdec
