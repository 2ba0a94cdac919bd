#include <cmath>

#include "families.h"
#include "floats/float_product.h"
#include "operators/scratch.h"

namespace skipdec::tests {
namespace {

// Weights that bfloat16 represents, multiples of 1/16, in bfloat16 and in float32.
struct Case {
  Case(const Shape& of_results, bool is_gated, Numbers& numbers) : shape(of_results) {
    weights.depth = shape.depth;
    weights.columns = columns_of(shape.columns, is_gated, Activation::kGelu);
    shape.columns = weights.columns.count;
    values.resize(static_cast<std::size_t>(weights.blocks() * shape.depth * 16));
    for (std::int64_t n = 0; n < shape.columns; ++n) {
      for (std::int64_t k = 0; k < shape.depth; ++k) {
        value(k, n) = upper_half(static_cast<float>(numbers.below(255) - 127) / 16.0F);
      }
    }
    bias = numbers.values(shape.columns);
    x = numbers.values(shape.rows * shape.depth);
    residual = numbers.values(shape.rows * shape.columns);
    for (const std::uint16_t each : values) wide.push_back(widened(each));
    weights.columns.bias = bias.data();
  }

  std::uint16_t& value(std::int64_t k, std::int64_t n) {
    const auto [block, lane] = place_of(weights.columns, n);
    return values[static_cast<std::size_t>((block * shape.depth + k) * 16 + lane)];
  }

  Shape shape;
  FloatWeights weights;
  std::vector<std::uint16_t> values;
  std::vector<float> wide, bias, x, residual;
};

// Returns the sums of all columns with their bias.
std::vector<float> products(Case& c) {
  std::vector<float> results(c.residual.size());
  for (std::int64_t m = 0; m < c.shape.rows; ++m) {
    for (std::int64_t n = 0; n < c.shape.columns; ++n) {
      float sum = 0;
      for (std::int64_t k = 0; k < c.shape.depth; ++k) {
        const float x = c.x[static_cast<std::size_t>(m * c.shape.depth + k)];
        sum = std::fma(x, widened(c.value(k, n)), sum);
      }
      results[static_cast<std::size_t>(m * c.shape.columns + n)] =
          sum + c.bias[static_cast<std::size_t>(n)];
    }
  }
  return results;
}

std::vector<float> expected(Case& c) {
  std::vector<float> results = products(c);
  if (c.weights.columns.is_gated) return gated(results, c.shape.columns);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const double z = results[i];
    results[i] = c.residual[i] + static_cast<float>(z * 0.5 * std::erfc(-z / std::sqrt(2.0)));
  }
  return results;
}

std::vector<float> computed(const Case& c, const FloatKernels& kernels, bool is_float32) {
  FloatWeights weights = c.weights;
  weights.size = is_float32 ? 4 : 2;
  weights.values = is_float32 ? static_cast<const void*>(c.wide.data()) : c.values.data();
  const Columns& columns = weights.columns;
  std::vector<float> results(static_cast<std::size_t>(c.shape.rows * columns.results()));
  Scratch packed;
  FloatRows rows;
  rows.count = c.shape.rows;
  rows.values = c.x.data();
  rows.residual = columns.is_gated ? nullptr : c.residual.data();
  rows.result = results.data();
  if (rows.count > 1) {
    rows.packed = static_cast<float*>(
        packed.reserve(kernels.packed_floats(rows.count, c.shape.depth) * sizeof(float)));
    in_two_threads(kernels.panels(rows.count), [&](std::int64_t begin, std::int64_t end) {
      kernels.pack(weights, rows, begin, end);
    });
  }
  const auto multiply = is_float32 ? kernels.multiply_float32 : kernels.multiply_bfloat16;
  blocks_in_two_threads(
      columns, [&](std::int64_t begin, std::int64_t end) { multiply(weights, rows, begin, end); });
  return results;
}

}  // namespace

Outcome float_products(InstructionSet set) {
  constexpr float kTolerance = 1e-4F;  // of GELU's approximation, at sums up to a few hundred
  Outcome outcome;
  Numbers numbers;
  for (const Shape& shape : kShapes) {
    for (const bool is_gated : {false, true}) {
      Case c(shape, is_gated, numbers);
      const float relative = is_gated ? kGatedTolerance : 0;
      for (const bool is_float32 : {false, true}) {
        outcome.add(computed(c, float_kernels(set), is_float32), expected(c),
                    is_gated ? kTinyGate : kTolerance, relative);
      }
    }
  }
  return outcome;
}

}  // namespace skipdec::tests
