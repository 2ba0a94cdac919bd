#include "norms/layer_norm.h"

#include <algorithm>

namespace skipdec {
namespace {

constexpr std::size_t kX = 0, kScale = 1, kBias = 2;

// Returns the number of rows that take about 10 µs, so that the few rows of a decode step use one
// thread.
std::int64_t rows_of_a_task(std::int64_t size) {
  constexpr std::int64_t kElements = 32768;
  return std::max<std::int64_t>(1, kElements / size);
}

}  // namespace

LayerNorm::LayerNorm(const NodeInfo& node) : normalize_(normalize_on(chosen_instruction_set())) {
  const Tensor scale = node.constant(kScale), bias = node.constant(kBias);
  require(scale && scale.rank == 1 && scale.dims[0] > 0, "scale must be an initialiser [E]");
  require(!bias || (bias.rank == 1 && bias.dims == scale.dims), "bias must be as long as scale");
  norm_.size = scale.dims[0];
  norm_.epsilon = node.attribute("epsilon", -1.0F);
  norm_.scale = scale.as<float>();
  norm_.bias = bias.as<float>();
  require(norm_.epsilon >= 0.0F, "epsilon must be a float, 0 or more");
}

void LayerNorm::compute(const CallContext& call) const {
  const Tensor x = call.input(kX);
  require(norm_.bias != nullptr || !call.input(kBias), "bias must be an initialiser");
  require(x.rank > 0 && x.last() == norm_.size, "x must be [..., E] with the E of scale");
  const float* values = x.as<float>();
  auto* result = call.output(0, x.dims, x.rank).as<float>();
  const std::int64_t rows = x.size() / norm_.size, step = rows_of_a_task(norm_.size);
  if (rows == 0) return;
  call.parallel_for(rows, step, [&](std::int64_t begin, std::int64_t end) noexcept {
    normalize_(norm_, values, result, begin, end);
  });
}

}  // namespace skipdec
