// Kernels of each instruction set for codes of ``bits``, one source file each.
#pragma once

#include "blocks/block_product.h"

namespace skipdec {

const BlockKernels& portable_block_kernels(int bits);
#if defined(__x86_64__)
const BlockKernels& avx2_block_kernels(int bits);
const BlockKernels& avxvnni_block_kernels(int bits);
const BlockKernels& avx512vnni_block_kernels(int bits);
const BlockKernels& amx_block_kernels(int bits);
#elif defined(__aarch64__)
const BlockKernels& neon_block_kernels(int bits);
#endif

}  // namespace skipdec
