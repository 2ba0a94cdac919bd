// From sums of 16 columns to a product's result, with the Vector of the including file.
#pragma once

#include "simd/functions.inc.h"

namespace skipdec {
namespace {

// The first ``count`` floats; memory beyond them is not touched.
inline Vector load_columns(const float* from, int count) {
  return count == Vector::kLanes ? Vector::load(from) : load_first(from, count);
}

// How many of 16 columns from ``column`` a product with ``columns`` has.
inline int columns_from(std::int64_t column, std::int64_t columns) {
  return static_cast<int>(std::min<std::int64_t>(columns - column, Vector::kLanes));
}

// Store activation(y + bias) + residual of the columns from ``column`` in ``row``. Weights have
// columns, bias and activation; rows a residual, which may be the result.
template <class Weights, class Rows>
inline void finish_columns(const Weights& weights, const Rows& rows, std::int64_t row,
                           std::int64_t column, Vector y) {
  const int count = columns_from(column, weights.columns);
  if (weights.bias != nullptr) y = y + load_columns(weights.bias + column, count);
  if (weights.activation == Activation::kRelu) y = relu(y);
  if (weights.activation == Activation::kGelu) y = gelu(y);
  const std::int64_t place = row * weights.columns + column;
  if (rows.residual != nullptr) y = load_columns(rows.residual + place, count) + y;
  if (count == Vector::kLanes) {
    y.store(rows.result + place);
  } else {
    store_first(y, rows.result + place, count);
  }
}

}  // namespace
}  // namespace skipdec
