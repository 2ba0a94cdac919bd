// Tables of kernels, one per instruction set and source file of this folder.
#pragma once

#include "sampling/draw.h"

namespace skipdec {

struct Drawing {
  DrawToken draw_token;
  SumWeights sum_weights;
};

Drawing portable_drawing();
#if defined(__x86_64__)
Drawing avx2_drawing();
Drawing avx512_drawing();
#elif defined(__aarch64__)
Drawing neon_drawing();
#endif

}  // namespace skipdec
