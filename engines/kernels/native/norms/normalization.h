// Layer normalisation of float32 rows: y = (x − mean) / sqrt(variance + epsilon) · scale + bias.
//
// Sums are added in the same order on every instruction set, so a row's bits depend only on the
// row. A row with NaN or infinity becomes NaN.
#pragma once

#include <cstdint>

#include "processor/instruction_set.h"

namespace skipdec {

// The caller owns all memory.
struct Normalization {
  std::int64_t size = 0;         // elements of a row
  float epsilon = 0;             // added to the variance
  const float* scale = nullptr;  // [size]
  const float* bias = nullptr;   // [size] or nullptr
};

// Normalises rows begin … end - 1 of ``values`` [rows, size] into ``result``, which may be
// ``values``.
using Normalize = void (*)(const Normalization&, const float* values, float* result,
                           std::int64_t begin, std::int64_t end) noexcept;

// Returns the implementation for ``set``, or for the next simpler set that has one.
Normalize normalize_on(InstructionSet set);

}  // namespace skipdec
