#include "norms/normalization.h"

#include <cmath>

#include "families.h"

namespace skipdec::tests {
namespace {

std::vector<float> expected(const Normalization& norm, const std::vector<float>& x) {
  std::vector<float> results(x.size());
  const auto size = static_cast<std::size_t>(norm.size);
  for (std::size_t first = 0; first < x.size(); first += size) {
    double mean = 0, variance = 0;
    for (std::size_t k = 0; k < size; ++k) mean += x[first + k] / static_cast<double>(size);
    for (std::size_t k = 0; k < size; ++k) {
      variance += std::pow(x[first + k] - mean, 2) / static_cast<double>(size);
    }
    for (std::size_t k = 0; k < size; ++k) {
      const double unit = (x[first + k] - mean) / std::sqrt(variance + norm.epsilon);
      results[first + k] = static_cast<float>(unit * norm.scale[k] + norm.bias[k]);
    }
  }
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
    const Normalization norm{shape.depth, 1e-5F, scale.data(), bias.data()};
    std::vector<float> results(x.size());
    in_two_threads(shape.rows, [&](std::int64_t begin, std::int64_t end) {
      normalize_on(set)(norm, x.data(), results.data(), begin, end);
    });
    outcome.add(results, expected(norm, x), kTolerance);
  }
  return outcome;
}

}  // namespace skipdec::tests
