// Samples tokens on NEON.
#if defined(__aarch64__)

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "sampling/draw.h"
#include "sampling/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"
// clang-format off: order matters
#include "simd/vector_neon.inc.h"
#include "simd/functions.inc.h"
#include "sampling/draw.inc.h"
// clang-format on

namespace skipdec {
Drawing neon_drawing() { return {draw_token, sum_weights}; }
}  // namespace skipdec

#endif  // __aarch64__
