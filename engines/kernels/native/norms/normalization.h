// Normalisation of float32 rows:
//
//   layer norm: y = (x − mean) / sqrt(variance + epsilon) · scale + bias
//   RMS norm:   y = x · (1 / sqrt(mean of x² + epsilon)) · scale
//
// Sums are added in the same order on every instruction set, so a row's bits depend only on the
// row. A row with NaN or infinity becomes NaN, and so does a row whose sum of squares exceeds
// float32.
#pragma once

#include <cstdint>

#include "simd/tables.h"

namespace skipdec {

// The caller owns all memory.
struct Normalization {
  std::int64_t size = 0;         // elements of a row
  float epsilon = 0;             // added to the variance or to the mean square
  const float* scale = nullptr;  // [size]
  const float* bias = nullptr;   // [size] or nullptr; a layer norm alone has one
};

// Normalises rows begin … end - 1 of ``values`` [rows, size] into ``result``, which may be
// ``values``.
using Normalize = void (*)(const Normalization&, const float* values, float* result,
                           std::int64_t begin, std::int64_t end) noexcept;

// Kernels of one instruction set.
struct NormKernels {
  Normalize layer_norm;
  Normalize rms_norm;
};

SKIPDEC_TABLES(const NormKernels&, norm_kernels)

}  // namespace skipdec
