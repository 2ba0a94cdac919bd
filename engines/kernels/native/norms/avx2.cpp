// Layer and RMS normalisation on AVX2, FMA and F16C.
#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <cstring>

#include "norms/normalization.h"
#include "norms/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

// clang-format off: order matters
#include "simd/vector_avx2.inc.h"
#include "norms/normalize.inc.h"
// clang-format on

namespace skipdec {
const NormKernels& avx2_norm_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
