// Multiplies a unit row by row, with Sums::add(codes, row).
#pragma once

namespace skipdec {
namespace {

template <int kRows, int kBits, typename Fetch>
inline __attribute__((always_inline)) void add_unit(Sums (&sums)[kRows], const Codes<kBits>& codes,
                                                    const std::int8_t* rows, std::int64_t stride,
                                                    Fetch fetch) {
  for (int line = 0; line < kBits; ++line) fetch(line);
  for (int row = 0; row < kRows; ++row) sums[row].add(codes, rows + row * stride);
}

}  // namespace
}  // namespace skipdec
