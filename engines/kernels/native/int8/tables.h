// Kernels of each instruction set, one source file each.
#pragma once

#include "int8/integer_product.h"

namespace skipdec {

const IntegerKernels& portable_integer_kernels();
#if defined(__x86_64__)
const IntegerKernels& avx2_integer_kernels();
const IntegerKernels& avxvnni_integer_kernels();
const IntegerKernels& avx512vnni_integer_kernels();
const IntegerKernels& amx_integer_kernels();
#endif
#if defined(__aarch64__)
const IntegerKernels& neon_integer_kernels();
#endif

}  // namespace skipdec
