#include "norms/normalization.h"

#include <cmath>

#include "families.h"

namespace skipdec::tests {
namespace {

std::vector<float> expected(const Normalization& norm, const std::vector<float>& x,
                            bool is_centred) {
  std::vector<float> results(x.size());
  const auto size = static_cast<std::size_t>(norm.size);
  for (std::size_t first = 0; first < x.size(); first += size) {
    double mean = 0, squares = 0;
    for (std::size_t k = 0; is_centred && k < size; ++k) {
      mean += x[first + k] / static_cast<double>(size);
    }
    for (std::size_t k = 0; k < size; ++k) {
      squares += std::pow(x[first + k] - mean, 2) / static_cast<double>(size);
    }
    for (std::size_t k = 0; k < size; ++k) {
      const double unit = (x[first + k] - mean) / std::sqrt(squares + norm.epsilon);
      const double bias = norm.bias == nullptr ? 0 : norm.bias[k];
      results[first + k] = static_cast<float>(unit * norm.scale[k] + bias);
    }
  }
  return results;
}

std::vector<float> computed(const Normalization& norm, const std::vector<float>& x,
                            Normalize normalize) {
  std::vector<float> results(x.size());
  const auto rows = static_cast<std::int64_t>(x.size()) / norm.size;
  in_two_threads(rows, [&](std::int64_t begin, std::int64_t end) {
    normalize(norm, x.data(), results.data(), begin, end);
  });
  return results;
}

}  // namespace

Outcome normalization(InstructionSet set) {
  constexpr float kTolerance = 1e-4F;
  Outcome outcome;
  Numbers numbers;
  for (const Shape& shape : kShapes) {
    const std::vector<float> scale = numbers.values(shape.depth),
                             bias = numbers.values(shape.depth),
                             x = numbers.values(shape.rows * shape.depth);
    const Normalization layer{shape.depth, 1e-5F, scale.data(), bias.data()};
    outcome.add(computed(layer, x, norm_kernels(set).layer_norm), expected(layer, x, true),
                kTolerance);
    const Normalization rms{shape.depth, 1e-5F, scale.data(), nullptr};
    outcome.add(computed(rms, x, norm_kernels(set).rms_norm), expected(rms, x, false), kTolerance);
  }
  return outcome;
}

}  // namespace skipdec::tests
