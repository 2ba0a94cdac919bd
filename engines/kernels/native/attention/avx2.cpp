#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "attention/kernels.h"
#include "attention/sizes.h"
#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

// clang-format off: order matters
#include "simd/vector_avx2.inc.h"
#include "simd/functions.inc.h"
#include "simd/chunks.inc.h"
// clang-format on

namespace skipdec::attention {
namespace {

// Register blocking: queries per pass for scores; queries and vectors of values for sums.
constexpr int kScoreQueries = 4;
constexpr int kValueQueries = 4;
constexpr int kValueColumns = 1;

constexpr bool kCompiledSizes = true;  // specialised for head sizes 64, 80, 96 and 128

}  // namespace
}  // namespace skipdec::attention

// clang-format off: order matters
#include "attention/heads.inc.h"
#include "attention/cache.inc.h"
#include "attention/decode.inc.h"
#include "attention/prompt.inc.h"
#include "attention/table.inc.h"
// clang-format on

namespace skipdec::attention {

const Kernels* avx2_kernels() { return kKernels; }

}  // namespace skipdec::attention

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
