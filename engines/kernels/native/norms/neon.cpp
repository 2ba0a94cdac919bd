// Layer and RMS normalisation on NEON.
#if defined(__aarch64__)

#include <algorithm>
#include <cmath>
#include <cstring>

#include "norms/normalization.h"
#include "norms/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"
// clang-format off: order matters
#include "simd/vector_neon.inc.h"
#include "norms/normalize.inc.h"
// clang-format on

namespace skipdec {
const NormKernels& neon_norm_kernels() { return kKernels; }
}  // namespace skipdec

#endif  // __aarch64__
