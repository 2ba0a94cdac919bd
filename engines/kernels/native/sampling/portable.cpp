// Samples tokens in plain C++.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "sampling/draw.h"
#include "sampling/tables.h"
#include "simd/element.h"
// clang-format off: order matters
#include "simd/vector_portable.inc.h"
#include "simd/functions.inc.h"
#include "sampling/draw.inc.h"
// clang-format on

namespace skipdec {
Drawing portable_drawing() { return {draw_token, sum_weights}; }
}  // namespace skipdec
