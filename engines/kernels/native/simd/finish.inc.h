// Turns sums of 16 columns into a product's result, with the Vector of the including file.
#pragma once

#include "simd/functions.inc.h"

namespace skipdec {
namespace {

// Loads the first ``count`` floats without touching memory beyond them.
inline Vector load_columns(const float* from, int count) {
  return count == Vector::kLanes ? Vector::load(from) : load_first(from, count);
}

// Finishes the 16 columns from ``column`` on, the last of which may not exist. Values that all rows
// share are loaded once. ``Weights`` has columns, bias and activation.
template <class Weights>
class FinishedColumns {
 public:
  FinishedColumns(const Weights& weights, std::int64_t column)
      : column_(column),
        columns_(weights.columns),
        count_(static_cast<int>(std::min<std::int64_t>(columns_ - column, Vector::kLanes))),
        activation_(weights.activation),
        has_bias_(weights.bias != nullptr),
        bias_(has_bias_ ? load(weights.bias) : Vector::broadcast(0.0F)) {}

  // Loads from a vector [N], with zeros for columns that do not exist.
  Vector load(const float* of_columns) const { return load_columns(of_columns + column_, count_); }

  // Stores activation(y + bias) + residual in ``row``. The residual may be the result.
  template <class Rows>
  void store(const Rows& rows, std::int64_t row, Vector y) const {
    if (has_bias_) y = y + bias_;
    if (activation_ == Activation::kRelu) y = relu(y);
    if (activation_ == Activation::kGelu) y = gelu(y);
    const std::int64_t place = row * columns_ + column_;
    if (rows.residual != nullptr) y = load_columns(rows.residual + place, count_) + y;
    if (count_ == Vector::kLanes) {
      y.store(rows.result + place);
    } else {
      store_first(y, rows.result + place, count_);
    }
  }

  int count() const { return count_; }

 private:
  std::int64_t column_;
  std::int64_t columns_;
  int count_;
  Activation activation_;
  bool has_bias_;
  Vector bias_;
};

}  // namespace
}  // namespace skipdec
