#include "norms/operators.h"

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

// Returns the parameters of a norm without bias from its node.
Normalization scaled_norm(const NodeInfo& node) {
  const Tensor scale = node.constant(kScale);
  require(scale && scale.rank == 1 && scale.dims[0] > 0, "scale must be an initialiser [E]");
  Normalization norm;
  norm.size = scale.dims[0];
  norm.epsilon = node.attribute("epsilon", -1.0F);
  norm.scale = scale.as<float>();
  require(norm.epsilon >= 0.0F, "epsilon must be a float, 0 or more");
  return norm;
}

void normalize_rows(const CallContext& call, const Normalization& norm, Normalize normalize) {
  const Tensor x = call.input(kX);
  require(x.rank > 0 && x.last() == norm.size, "x must be [..., E] with the E of scale");
  const float* values = x.as<float>();
  auto* result = call.output(0, x.dims, x.rank).as<float>();
  const std::int64_t rows = x.size() / norm.size, step = rows_of_a_task(norm.size);
  if (rows == 0) return;
  call.parallel_for(rows, step, [&](std::int64_t begin, std::int64_t end) noexcept {
    normalize(norm, values, result, begin, end);
  });
}

}  // namespace

LayerNorm::LayerNorm(const NodeInfo& node)
    : normalize_(norm_kernels(chosen_instruction_set()).layer_norm), norm_(scaled_norm(node)) {
  const Tensor bias = node.constant(kBias);
  require(!bias || (bias.rank == 1 && bias.dims[0] == norm_.size), "bias must be as long as scale");
  norm_.bias = bias.as<float>();
}

void LayerNorm::compute(const CallContext& call) const {
  require(norm_.bias != nullptr || !call.input(kBias), "bias must be an initialiser");
  normalize_rows(call, norm_, normalize_);
}

RmsNorm::RmsNorm(const NodeInfo& node)
    : normalize_(norm_kernels(chosen_instruction_set()).rms_norm), norm_(scaled_norm(node)) {}

void RmsNorm::compute(const CallContext& call) const { normalize_rows(call, norm_, normalize_); }

}  // namespace skipdec
