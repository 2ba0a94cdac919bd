// Tables of kernels, one per instruction set and source file of this folder.
#pragma once

#include "float16/half_product.h"

namespace skipdec {

const HalfKernels& portable_half_kernels();
#if defined(__x86_64__)
const HalfKernels& avx2_half_kernels();
const HalfKernels& avx512_half_kernels();
#elif defined(__aarch64__)
const HalfKernels& neon_half_kernels();
#endif

}  // namespace skipdec
