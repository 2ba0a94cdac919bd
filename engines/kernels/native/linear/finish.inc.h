// From sums of integers to a product's result, with the Vector of the including file.
#pragma once

#include "simd/finish.inc.h"

namespace skipdec {
namespace {

// ``sums``: float(Σ q·w − offset) of 16 columns of ``block`` in ``row``.
inline void finish_floats(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t row,
                          std::int64_t block, Vector sums) {
  const std::int64_t column = block * kBlockColumns;
  const int count = columns_from(column, weights.columns);
  const Vector scale = load_columns(weights.scale + column, count);
  finish_columns(weights, rows, row, column, (sums * scale) * Vector::broadcast(rows.scale[row]));
}

// The same of ``sums`` of 16 columns, whose function less(offset) gives the floats.
template <class Sums>
inline void finish(const IntegerWeights& weights, const IntegerRows& rows, std::int64_t row,
                   std::int64_t block, const Sums& sums) {
  const std::int64_t column = block * kBlockColumns;
  const std::int64_t count = std::min(kBlockColumns, weights.columns - column);
  const std::int32_t* offset = weights.offset + column;
  std::int32_t last[kBlockColumns] = {};
  if (count < kBlockColumns) {
    std::copy_n(offset, count, last);
    offset = last;
  }
  finish_floats(weights, rows, row, block, sums.less(offset));
}

}  // namespace
}  // namespace skipdec
