// Tables of kernels, one per instruction set and source file of this folder.
#pragma once

#include "norms/normalization.h"

namespace skipdec {

Normalize portable_normalize();
#if defined(__x86_64__)
Normalize avx2_normalize();
Normalize avx512_normalize();
#elif defined(__aarch64__)
Normalize neon_normalize();
#endif

}  // namespace skipdec
