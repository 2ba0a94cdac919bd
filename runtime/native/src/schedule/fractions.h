// Fractions, rounded as in the Python runtime.
#pragma once

#include <cmath>
#include <cstdint>

namespace skipdec::runtime {

// Returns the largest integer not above numerator / denominator; denominator > 0.
inline std::int64_t floor_of(std::int64_t numerator, std::int64_t denominator) {
  const std::int64_t quotient = numerator / denominator;
  return numerator % denominator < 0 ? quotient - 1 : quotient;
}

// Returns the nearest integer, ties upward.
inline std::int64_t round_half_up(std::int64_t numerator, std::int64_t denominator) {
  return floor_of(2 * numerator + denominator, 2 * denominator);
}

// Irrational values are rounded to a grid, so that the last bits of a libm can't decide ties.
constexpr std::int64_t kGrid = std::int64_t{1} << 40;
inline std::int64_t on_grid(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value * static_cast<double>(kGrid)));
}

}  // namespace skipdec::runtime
