#include <algorithm>
#include <cmath>

#include "blocks/block_product.h"
#include "families.h"
#include "operators/scratch.h"

namespace skipdec::tests {
namespace {

struct Case {
  Case(const Shape& of_results, int bits, bool is_gated, Numbers& numbers) : shape(of_results) {
    weights.bits = bits;
    weights.block_size = 32 << shape.columns % 3;
    weights.blocks = (shape.depth + weights.block_size - 1) / weights.block_size;
    weights.columns = columns_of(shape.columns, is_gated, Activation::kNone);
    shape.columns = weights.columns.count;
    const std::int64_t depth = weights.padded_depth();
    codes.assign(static_cast<std::size_t>(weights.panels() * panel_bytes(depth, bits)),
                 bits == 8 ? 0 : 0x88);
    scale.resize(static_cast<std::size_t>(weights.panels() * weights.blocks * 16));
    plain.resize(static_cast<std::size_t>(depth * shape.columns));
    for (std::int64_t n = 0; n < shape.columns; ++n) {
      for (std::int64_t k = 0; k < depth; ++k) {
        set_code(k, n, static_cast<unsigned>(numbers.below(1 << bits)));
      }
      for (std::int64_t block = 0; block < weights.blocks; ++block) {
        scale_of(block, n).bits = upper_half(static_cast<float>(1 + numbers.below(127)) / 64.0F);
      }
    }
    bias = numbers.values(shape.columns);
    x = numbers.values(shape.rows * shape.depth);
    residual = numbers.values(shape.rows * shape.columns);
    weights.codes = codes.data();
    weights.scale = scale.data();
    weights.columns.bias = bias.data();
  }

  void set_code(std::int64_t k, std::int64_t n, unsigned code) {
    const int integer = static_cast<int>(code) - (1 << (weights.bits - 1));
    plain[static_cast<std::size_t>(k * shape.columns + n)] = integer;
    const auto [panel, lane] = place_of(weights.columns, n);
    if (weights.bits == 8) {
      const std::int64_t four = (panel * weights.padded_depth() / 4 + k / 4) * 16 + lane;
      codes[static_cast<std::size_t>(four * 4 + k % 4)] = static_cast<std::uint8_t>(integer);
      return;
    }
    const std::int64_t eight = (panel * weights.padded_depth() / 8 + k / 8) * 16 + lane;
    std::uint8_t& byte = codes[static_cast<std::size_t>(eight * 4 + k % 4)];
    byte = static_cast<std::uint8_t>(k % 8 < 4 ? (byte & 0xf0U) | code
                                               : (byte & 0x0fU) | (code << 4U));
  }
  Bfloat16& scale_of(std::int64_t block, std::int64_t n) {
    const auto [panel, lane] = place_of(weights.columns, n);
    return scale[static_cast<std::size_t>((panel * weights.blocks + block) * 16 + lane)];
  }

  Shape shape;
  BlockWeights weights;
  std::vector<std::uint8_t> codes;
  std::vector<Bfloat16> scale;
  std::vector<int> plain;
  std::vector<float> bias, x, residual;
};

// Returns ``total`` plus the contribution of block number ``block`` of row m
// and column n.
float with_block(Case& c, std::int64_t m, std::int64_t n, std::int64_t block, float total) {
  const std::int64_t first = block * c.weights.block_size,
                     last = std::min(first + c.weights.block_size, c.shape.depth);
  const float* row = c.x.data() + m * c.shape.depth;
  float largest = 0;
  for (std::int64_t k = first; k < last; ++k) largest = std::max(largest, std::fabs(row[k]));
  const float step = largest / 127.0F, inverse = step > 0 ? 1.0F / step : 0.0F;
  std::int32_t sum = 0;
  for (std::int64_t k = first; k < last; ++k) {
    sum += static_cast<std::int32_t>(std::nearbyint(row[k] * inverse)) *
           c.plain[static_cast<std::size_t>(k * c.shape.columns + n)];
  }
  return std::fma(static_cast<float>(sum), widened(c.scale_of(block, n).bits) * step, total);
}

// Returns the sums of all columns with their bias.
std::vector<float> products(Case& c) {
  std::vector<float> results(c.residual.size());
  for (std::int64_t m = 0; m < c.shape.rows; ++m) {
    for (std::int64_t n = 0; n < c.shape.columns; ++n) {
      float total = 0;
      for (std::int64_t block = 0; block < c.weights.blocks; ++block) {
        total = with_block(c, m, n, block, total);
      }
      results[static_cast<std::size_t>(m * c.shape.columns + n)] =
          total + c.bias[static_cast<std::size_t>(n)];
    }
  }
  return results;
}

std::vector<float> expected(Case& c) {
  std::vector<float> results = products(c);
  if (c.weights.columns.is_gated) return gated(results, c.shape.columns);
  for (std::size_t i = 0; i < results.size(); ++i) results[i] += c.residual[i];
  return results;
}

std::vector<float> computed(const Case& c, const BlockKernels& kernels) {
  const Columns& columns = c.weights.columns;
  std::vector<float> results(static_cast<std::size_t>(c.shape.rows * columns.results()));
  const auto blocks = static_cast<std::size_t>(c.shape.rows * c.weights.blocks);
  Scratch codes;
  std::vector<float> scale(blocks);
  std::vector<std::int32_t> correction(blocks);
  BlockRows rows;
  rows.count = c.shape.rows;
  rows.depth = c.shape.depth;
  rows.group = kernels.group;
  rows.values = c.x.data();
  rows.codes = static_cast<std::int8_t*>(codes.reserve(rows.code_bytes(c.weights)));
  rows.scale = scale.data();
  rows.correction = correction.data();
  rows.residual = columns.is_gated ? nullptr : c.residual.data();
  rows.result = results.data();
  in_two_threads(rows.groups(), [&](std::int64_t begin, std::int64_t end) {
    kernels.quantize(c.weights, rows, begin, end);
  });
  blocks_in_two_threads(columns, [&](std::int64_t begin, std::int64_t end) {
    kernels.multiply(c.weights, rows, begin, end);
  });
  return results;
}

}  // namespace

Outcome block_products(InstructionSet set) {
  Outcome outcome;
  Numbers numbers;
  for (const int bits : {4, 8}) {
    for (const Shape& shape : kShapes) {
      for (const bool is_gated : {false, true}) {
        Case c(shape, bits, is_gated, numbers);
        outcome.add(computed(c, block_kernels(set, bits, shape.rows)), expected(c),
                    is_gated ? kTinyGate : 0, is_gated ? kGatedTolerance : 0);
      }
    }
  }
  return outcome;
}

}  // namespace skipdec::tests
