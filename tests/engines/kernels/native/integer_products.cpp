#include <algorithm>
#include <cmath>

#include "families.h"
#include "int8/integer_product.h"
#include "operators/scratch.h"

namespace skipdec::tests {
namespace {

struct Case {
  Case(const Shape& of_results, bool is_gated, Numbers& numbers) : shape(of_results) {
    weights.padded_depth = (shape.depth + 63) / 64 * 64;
    weights.columns = columns_of(shape.columns, is_gated, Activation::kRelu);
    shape.columns = weights.columns.count;
    codes.resize(static_cast<std::size_t>(weights.blocks() * weights.padded_depth * 16));
    offset.resize(static_cast<std::size_t>(shape.columns));
    for (std::int64_t n = 0; n < shape.columns; ++n) {
      for (std::int64_t k = 0; k < shape.depth; ++k) {
        code(k, n) = static_cast<std::int8_t>(numbers.below(255) - 127);
        offset[static_cast<std::size_t>(n)] += 128 * code(k, n);
      }
    }
    scale = numbers.values(shape.columns);
    bias = numbers.values(shape.columns);
    x = numbers.values(shape.rows * shape.depth);
    residual = numbers.values(shape.rows * shape.columns);
    weights.codes = codes.data();
    weights.scale = scale.data();
    weights.offset = offset.data();
    weights.columns.bias = bias.data();
  }

  std::int8_t& code(std::int64_t k, std::int64_t n) {
    const auto [block, lane] = place_of(weights.columns, n);
    return codes[static_cast<std::size_t>((block * weights.padded_depth + k / 4 * 4) * 16 +
                                          lane * 4 + k % 4)];
  }

  Shape shape;
  IntegerWeights weights;
  std::vector<std::int8_t> codes;
  std::vector<std::int32_t> offset;
  std::vector<float> scale, bias, x, residual;
};

// Returns the sums of all columns with their bias.
std::vector<float> products(Case& c) {
  std::vector<float> results(c.residual.size());
  for (std::int64_t m = 0; m < c.shape.rows; ++m) {
    const float* row = c.x.data() + m * c.shape.depth;
    float largest = 0;
    for (std::int64_t k = 0; k < c.shape.depth; ++k) largest = std::max(largest, std::fabs(row[k]));
    const float step = largest / 127.0F;
    for (std::int64_t n = 0; n < c.shape.columns; ++n) {
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < c.shape.depth; ++k) {
        const float quotient = step > 0 ? row[k] / step : 0.0F;
        sum += static_cast<std::int32_t>(std::nearbyint(quotient)) * c.code(k, n);
      }
      const auto column = static_cast<std::size_t>(n);
      results[static_cast<std::size_t>(m * c.shape.columns + n)] =
          static_cast<float>(sum) * c.scale[column] * step + c.bias[column];
    }
  }
  return results;
}

std::vector<float> expected(Case& c) {
  std::vector<float> results = products(c);
  if (c.weights.columns.is_gated) return gated(results, c.shape.columns);
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i] = c.residual[i] + std::max(results[i], 0.0F);
  }
  return results;
}

std::vector<float> computed(const Case& c, const IntegerKernels& kernels) {
  const Columns& columns = c.weights.columns;
  std::vector<float> results(static_cast<std::size_t>(c.shape.rows * columns.results())),
      scale(static_cast<std::size_t>(c.shape.rows));
  Scratch codes;
  IntegerRows rows;
  rows.count = c.shape.rows;
  rows.depth = c.shape.depth;
  rows.values = c.x.data();
  rows.codes = static_cast<std::uint8_t*>(
      codes.reserve(kernels.code_bytes(c.shape.rows, c.weights.padded_depth)));
  rows.scale = scale.data();
  rows.residual = columns.is_gated ? nullptr : c.residual.data();
  rows.result = results.data();
  in_two_threads(rows.count, [&](std::int64_t begin, std::int64_t end) {
    kernels.quantize(c.weights, rows, begin, end);
  });
  blocks_in_two_threads(columns, [&](std::int64_t begin, std::int64_t end) {
    kernels.multiply(c.weights, rows, begin, end);
  });
  return results;
}

}  // namespace

Outcome integer_products(InstructionSet set) {
  Outcome outcome;
  Numbers numbers;
  for (const Shape& shape : kShapes) {
    for (const bool is_gated : {false, true}) {
      Case c(shape, is_gated, numbers);
      outcome.add(computed(c, integer_kernels(set, shape.rows)), expected(c),
                  is_gated ? kTinyGate : 0, is_gated ? kGatedTolerance : 0);
    }
  }
  return outcome;
}

}  // namespace skipdec::tests
