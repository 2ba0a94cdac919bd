// Samples tokens on AVX2, FMA and F16C.
#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "sampling/draw.h"
#include "sampling/tables.h"
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
#include "simd/functions.inc.h"
#include "sampling/draw.inc.h"
// clang-format on

namespace skipdec {
Drawing avx2_drawing() { return {draw_token, sum_weights}; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
