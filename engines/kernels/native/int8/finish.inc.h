// Turns integer sums into a product's result, with the Vector of the including file.
#pragma once

#include "simd/finish.inc.h"

namespace skipdec {
namespace {

// Stores the results of ``count`` rows from ``row`` in a block of columns; sums_of(m) returns the
// sums of row + m, whose function less(offset) returns float(Σ q·w − offset).
template <class SumsOf>
inline void finish_block(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t row,
                         std::int64_t count, std::int64_t block, const SumsOf& sums_of) {
  with_columns(weights.columns, block, [&](const auto& columns) {
    const Vector scale = columns.load(weights.scale);
    const std::int32_t* offset = weights.offset + columns.first();
    std::int32_t last[kBlockColumns] = {};
    if (columns.count() < kBlockColumns) {
      std::copy_n(offset, columns.count(), last);
      offset = last;
    }
    for (std::int64_t m = 0; m < count; ++m) {
      const Vector of_row = sums_of(m).less(offset) * scale;
      columns.finish(rows, row + m, of_row * Vector::broadcast(rows.scale[row + m]));
    }
  });
}

}  // namespace
}  // namespace skipdec
