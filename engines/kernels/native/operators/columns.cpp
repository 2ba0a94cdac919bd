#include "operators/columns.h"

#include "operators/context.h"

namespace skipdec {

Columns columns_of(const NodeInfo& node, std::int64_t count) {
  const std::int64_t gated = node.attribute("gated", std::int64_t{0});
  require(gated == 0 || gated == 1, "gated must be 0 or 1");
  require(gated == 0 || count % 2 == 0, "a gated product must have an even number N of columns");
  const Activation activation = activation_of(node);
  require(gated == 0 || activation == Activation::kGelu || activation == Activation::kSilu,
          "a gated product must have activation 2 (GELU) or 3 (SiLU)");
  return {count, nullptr, activation, gated == 1};
}

const float* bias_of(const NodeInfo& node, std::size_t input, const Columns& columns) {
  const Tensor bias = node.constant(input);
  require(!bias || (bias.rank == 1 && bias.dims[0] == columns.count), "bias must be [N]");
  return bias.as<float>();
}

ProductRows product_rows(const CallContext& call, const Columns& columns, const Tensor& x,
                         std::size_t bias, bool fits) {
  const Tensor residual = call.input(bias + 1);
  require(columns.bias != nullptr || !call.input(bias), "bias must be an initialiser");
  require(x.rank > 0 && fits, "x must be [..., K] with the K of weight");
  Tensor y = x;
  y.dims[y.rank - 1] = columns.results();
  require(!residual || !columns.is_gated, "a gated product takes no residual");
  require(!residual || (residual.rank == y.rank && residual.dims == y.dims),
          "residual must have the shape of the result");
  return {x.size() / x.last(), x.last(), x.as<float>(), residual.as<float>(),
          call.output(0, y.dims, y.rank).as<float>()};
}

std::int64_t blocks_of_a_task(std::int64_t blocks, std::int64_t size, std::int64_t rows,
                              std::int64_t most, std::int64_t together) {
  constexpr std::int64_t kTasks = 16;
  if (is_small(blocks * size, rows)) return blocks;
  const std::int64_t number = std::max<std::int64_t>(1, std::min(most / size, blocks / kTasks));
  return (number + together - 1) / together * together;
}

}  // namespace skipdec
