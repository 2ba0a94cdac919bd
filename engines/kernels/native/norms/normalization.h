// Layer normalisation of float32 rows: y = (x − mean) / sqrt(variance + epsilon) · scale + bias.
//
// Sums go in the same order on every instruction set, so a row's bits depend on nothing but the
// row. A row with NaN or infinity is NaN.
#pragma once

#include <cstdint>

#include "processor/instruction_set.h"

namespace skipdec {

// All pointers are the caller's.
struct Normalization {
  std::int64_t size = 0;         // of a row
  float epsilon = 0;             // added to the variance
  const float* scale = nullptr;  // [size]
  const float* bias = nullptr;   // [size] or none
};

// Normalise rows begin … end - 1 of ``values`` [rows, size] into ``result``, which may be
// ``values``.
using Normalize = void (*)(const Normalization&, const float* values, float* result,
                           std::int64_t begin, std::int64_t end) noexcept;

// How ``set``, or the next plainer one that has a way, does it.
Normalize normalize_on(InstructionSet set);

}  // namespace skipdec
