// 16-bit weights on NEON: 32 registers of 4 lanes.
#if defined(__aarch64__)

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "float16/half_product.h"
#include "float16/tables.h"
#include "simd/element.h"
#include "simd/intrinsics.h"
#include "simd/vector_neon.inc.h"

namespace skipdec {
namespace {

constexpr int kPanelRows = 6;
constexpr int blocks_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 3 : rows == 3 ? 2 : 1; }

}  // namespace
}  // namespace skipdec

#include "float16/multiply.inc.h"

namespace skipdec {
const HalfKernels& neon_half_kernels() { return kKernels; }
}  // namespace skipdec

#endif  // __aarch64__
