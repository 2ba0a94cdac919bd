// Layer and RMS normalisation on AVX-512.
#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <cstring>

#include "norms/normalization.h"
#include "norms/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__clang__)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

// clang-format off: order matters
#include "simd/vector_avx512.inc.h"
#include "norms/normalize.inc.h"
// clang-format on

namespace skipdec {
const NormKernels& avx512_norm_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
