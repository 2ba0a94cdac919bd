// Kernels of each instruction set, one source file each.
#pragma once

#include "int4/block_product.h"

namespace skipdec {

const BlockKernels& portable_block_kernels();
#if defined(__x86_64__)
const BlockKernels& avx2_block_kernels();
const BlockKernels& avxvnni_block_kernels();
const BlockKernels& avx512vnni_block_kernels();
const BlockKernels& amx_block_kernels();
#elif defined(__aarch64__)
const BlockKernels& neon_block_kernels();
#endif

}  // namespace skipdec
