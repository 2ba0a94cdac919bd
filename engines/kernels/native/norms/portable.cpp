// Layer and RMS normalisation in plain C++.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "norms/normalization.h"
#include "norms/tables.h"
#include "simd/element.h"
// clang-format off: order matters
#include "simd/vector_portable.inc.h"
#include "norms/normalize.inc.h"
// clang-format on

namespace skipdec {
const NormKernels& portable_norm_kernels() { return kKernels; }
}  // namespace skipdec
