// 16-bit weights on AVX-512: 32 registers of 16 lanes.
#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "float16/half_product.h"
#include "float16/tables.h"
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

#include "simd/vector_avx512.inc.h"

namespace skipdec {
namespace {

constexpr int kPanelRows = 14;
constexpr int blocks_at_once(int rows) { return rows <= 4 ? 4 : 2; }

}  // namespace
}  // namespace skipdec

#include "float16/multiply.inc.h"

namespace skipdec {
const HalfKernels& avx512_half_kernels() { return kKernels; }
}  // namespace skipdec

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
