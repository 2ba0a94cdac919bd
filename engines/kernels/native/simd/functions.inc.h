// Functions of a Vector with the same bits for every Vector; include after one of them.
#pragma once

namespace skipdec {
namespace {

// Keeps NaN and -0.
inline Vector relu(const Vector& x) { return max(Vector::broadcast(0.0F), x); }

// Returns e^x within 1.1 units in the last place for x in [-87.3, 88], 0 below, and the value at 88
// above; NaN stays NaN. With n the integer nearest to x / ln 2 and r the remainder, it computes
// 2^n · (1 + r + r²·P(r)), P fitted by least squares.
inline Vector exp(const Vector& x) {
  const Vector least = Vector::broadcast(-87.3F);
  const Vector limited = min(Vector::broadcast(88.0F), max(least, x));
  const Vector bias = Vector::broadcast(0x1.8p23F);
  const Vector biased = multiply_add(limited, Vector::broadcast(0x1.715476p0F), bias);
  const Vector n = biased - bias;
  Vector r = multiply_add(n, Vector::broadcast(-0x1.62e43p-1F), limited);  // ln 2, in two parts
  r = multiply_add(n, Vector::broadcast(0x1.05c610p-29F), r);
  Vector p = Vector::broadcast(1.39476091e-3F);
  p = multiply_add(p, r, Vector::broadcast(8.36987607e-3F));
  p = multiply_add(p, r, Vector::broadcast(4.16662470e-2F));
  p = multiply_add(p, r, Vector::broadcast(0.166665092F));
  p = multiply_add(p, r, Vector::broadcast(0.5F));
  p = multiply_add(p * r, r, r) + Vector::broadcast(1.0F);
  return select_less(x, least, Vector::broadcast(0.0F), p * power_of_two(biased));
}

// Returns x / (1 + e^-x); 0 below -88, where it is less than 6e-37 from 0. NaN stays NaN.
inline Vector silu(const Vector& x) {
  const Vector zero = Vector::broadcast(0.0F);
  const Vector quotient = x / (Vector::broadcast(1.0F) + exp(zero - x));
  return select_less(x, Vector::broadcast(-88.0F), zero, quotient);
}

// Returns the error function within 4e-7: x·P(x²)/Q(x²), fitted on [-3.95, 3.95]. From ±3.94 on
// it is ±1, so that gelu of a large negative number is 0. NaN stays NaN.
inline Vector erf(const Vector& x) {
  const Vector limit = Vector::broadcast(3.94F);
  const Vector limited = min(limit, max(Vector::broadcast(-3.94F), x));
  const Vector z = limited * limited;
  Vector p = Vector::broadcast(2.03219496e-6F);
  Vector q = Vector::broadcast(3.78642507e-5F);
  p = multiply_add(p, z, Vector::broadcast(2.84057925e-4F));
  q = multiply_add(q, z, Vector::broadcast(1.16339095e-3F));
  p = multiply_add(p, z, Vector::broadcast(3.77738314e-3F));
  q = multiply_add(q, z, Vector::broadcast(1.49932136e-2F));
  p = multiply_add(p, z, Vector::broadcast(5.27801496e-2F));
  q = multiply_add(q, z, Vector::broadcast(0.114260261F));
  p = multiply_add(p, z, Vector::broadcast(0.190824517F));
  q = multiply_add(q, z, Vector::broadcast(0.502446648F));
  p = multiply_add(p, z, Vector::broadcast(1.12837915F));
  q = multiply_add(q, z, Vector::broadcast(1.0F));
  return limited * p / q;
}

// Returns x · (1 + erf(x/√2)) / 2.
inline Vector gelu(const Vector& x) {
  const Vector half = Vector::broadcast(0.5F) * x;
  return multiply_add(half, erf(x * Vector::broadcast(0x1.6a09e6p-1F)), half);
}

}  // namespace
}  // namespace skipdec
