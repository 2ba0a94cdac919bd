// The factor of layer and RMS norms, of rows and of heads.
#pragma once

namespace skipdec {
namespace {

// Returns 1 / sqrt(squares / length + epsilon), or NaN if the sum ``squares`` is not finite,
// because the factor would be 0 and silently make the result zeros.
inline float inverse_root(float squares, float length, float epsilon) {
  return 1.0F / std::sqrt(squares / length + epsilon) + squares * 0.0F;
}

}  // namespace
}  // namespace skipdec
