// Rotary position embedding: a table of the cosines and sines of the angles at a call's positions.
#pragma once

#include <cstdint>

namespace skipdec {

// Largest rate, in radians per position. Positions are below 2^24, so that angles stay below 2^25,
// where cosines and sines are exact to 1e-13 before they are rounded.
constexpr float kLargestRate = 2.0F;

// How the token at position p is rotated: pair i of a head by the angle p · rates[i].
struct Rotation {
  const float* rates = nullptr;  // [R/2], each in [0, kLargestRate]
  std::int64_t pairs = 0;        // R/2; 0 for no rotation
  float scale = 1.0F;            // multiplies cosines and sines
};

// Writes rows [begin, end) of the table [B·S, R] of S ``tokens`` per sequence, the first of which
// is at write_indices[b]: a row has the cosines of all pairs, then their sines.
//
// An angle is the product of the position and the rate rounded to float32, as in the models'
// reference code. Its cosine and sine are computed in float64 from operations that round the same
// way on every processor, multiplied by ``scale`` and rounded to float32.
void write_rotation(const Rotation& rotation, const std::int64_t* write_indices,
                    std::int64_t tokens, std::int64_t begin, std::int64_t end,
                    float* table) noexcept;

}  // namespace skipdec
