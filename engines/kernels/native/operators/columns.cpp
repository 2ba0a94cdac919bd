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

void require_residual(const Columns& columns, const Tensor& residual, const Tensor& y) {
  require(!residual || !columns.is_gated, "a gated product takes no residual");
  require(!residual || (residual.rank == y.rank && residual.dims == y.dims),
          "residual must have the shape of the result");
}

}  // namespace skipdec
