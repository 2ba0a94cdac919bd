// Turns sums of 16 columns into a product's result, with the Vector of the including file.
#pragma once

#include "simd/functions.inc.h"

namespace skipdec {
namespace {

inline bool is_smooth(Activation activation) {
  return activation == Activation::kGelu || activation == Activation::kSilu;
}

// Not inlined, because it would take registers from the preceding loops.
__attribute__((noinline)) inline Vector smoothly_activated(const Vector& y, Activation activation) {
  return activation == Activation::kGelu ? gelu(y) : silu(y);
}

// ``kIsSmooth`` is known before the loops, because a call inside them would spill every sum to
// memory.
template <bool kIsSmooth>
inline Vector activated(const Vector& y, Activation activation) {
  if constexpr (kIsSmooth) return smoothly_activated(y, activation);
  return activation == Activation::kRelu ? relu(y) : y;
}

// A block's columns that exist, in vectors [N] and in the result.
class BlockColumns {
 public:
  BlockColumns(std::int64_t first, std::int64_t place, std::int64_t results)
      : first_(first),
        place_(place),
        results_(results),
        count_(static_cast<int>(std::min(results - place, Columns::kBlock))) {}

  int count() const { return count_; }
  std::int64_t first() const { return first_; }
  std::int64_t place(std::int64_t row) const { return row * results_ + place_; }

  // Loads from a vector [N], with zeros for columns that do not exist.
  Vector load(const float* of_columns) const { return load_up_to(of_columns + first_, count_); }
  // Loads from a result, and stores to it.
  Vector load(const float* results, std::int64_t place) const {
    return load_up_to(results + place, count_);
  }
  void store(const Vector& y, float* results, std::int64_t place) const {
    store_up_to(y, results + place, count_);
  }

 private:
  std::int64_t first_;
  std::int64_t place_;
  std::int64_t results_;
  int count_;
};

// Finishes the sums of a block; data that all rows share is loaded once.
template <bool kIsSmooth>
class PlainColumns : public BlockColumns {
 public:
  PlainColumns(const Columns& columns, std::int64_t block)
      : BlockColumns(block * Columns::kBlock, block * Columns::kBlock, columns.count),
        activation_(columns.activation),
        has_bias_(columns.bias != nullptr),
        bias_(has_bias_ ? load(columns.bias) : Vector::broadcast(0.0F)) {}

  // Stores activation(y + bias) + residual in ``row``. The residual may be the result.
  template <class Rows>
  void finish(const Rows& rows, std::int64_t row, Vector y) const {
    if (has_bias_) y = y + bias_;
    y = activated<kIsSmooth>(y, activation_);
    const std::int64_t at = place(row);
    if (rows.residual != nullptr) y = load(rows.residual, at) + y;
    store(y, rows.result, at);
  }

 private:
  Activation activation_;
  bool has_bias_;
  Vector bias_;
};

// Finishes the sums of a block of a gated product. The gate's block is finished first; its partner
// then multiplies the values in the result.
template <bool kIsMultiplier>
class GatedColumns : public BlockColumns {
 public:
  GatedColumns(const Columns& columns, std::int64_t block)
      : BlockColumns(columns.first(block), columns.place(block), columns.results()),
        activation_(columns.activation),
        bias_(columns.bias != nullptr ? load(columns.bias) : Vector::broadcast(0.0F)) {}

  template <class Rows>
  void finish(const Rows& rows, std::int64_t row, Vector y) const {
    y = y + bias_;
    const std::int64_t at = place(row);
    y = kIsMultiplier ? load(rows.result, at) * y : activated<true>(y, activation_);
    store(y, rows.result, at);
  }

 private:
  Activation activation_;
  Vector bias_;
};

// Calls use(finished), where ``finished`` finishes the sums of ``block``.
template <class Use>
inline void with_columns(const Columns& columns, std::int64_t block, const Use& use) {
  if (columns.is_multiplier(block)) {
    use(GatedColumns<true>(columns, block));
  } else if (columns.is_gated) {
    use(GatedColumns<false>(columns, block));
  } else if (is_smooth(columns.activation)) {
    use(PlainColumns<true>(columns, block));
  } else {
    use(PlainColumns<false>(columns, block));
  }
}

}  // namespace
}  // namespace skipdec
