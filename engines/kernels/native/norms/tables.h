// Tables of kernels, one per instruction set and source file of this folder.
#pragma once

#include "norms/normalization.h"

namespace skipdec {

const NormKernels& portable_norm_kernels();
#if defined(__x86_64__)
const NormKernels& avx2_norm_kernels();
const NormKernels& avx512_norm_kernels();
#elif defined(__aarch64__)
const NormKernels& neon_norm_kernels();
#endif

}  // namespace skipdec
