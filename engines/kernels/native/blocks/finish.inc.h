// From sums over blocks to a product's result, with the Vector of the including file.
#pragma once

#include "simd/functions.inc.h"

namespace skipdec {
namespace {

// ``y``: the sums of 16 columns of ``panel`` in ``row``.
inline void finish(const BlockWeights& weights, const BlockRows& rows, std::int64_t row,
                   std::int64_t panel, Vector y) {
  const std::int64_t column = panel * kPanelColumns;
  const int count = static_cast<int>(std::min(kPanelColumns, weights.columns - column));
  const auto load = [count](const float* from) {
    return count == kPanelColumns ? Vector::load(from) : load_first(from, count);
  };
  if (weights.bias != nullptr) y = y + load(weights.bias + column);
  if (weights.activation == Activation::kRelu) y = max(Vector::broadcast(0.0F), y);  // keeps NaN
  if (weights.activation == Activation::kGelu) y = gelu(y);
  const std::int64_t place = row * weights.columns + column;
  if (rows.residual != nullptr) y = load(rows.residual + place) + y;
  if (count == kPanelColumns) {
    y.store(rows.result + place);
  } else {
    store_first(y, rows.result + place, count);
  }
}

}  // namespace
}  // namespace skipdec
