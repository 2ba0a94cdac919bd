// 16-bit weights in plain C++.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "float16/half_product.h"
#include "float16/tables.h"
#include "simd/element.h"
#include "simd/vector_portable.inc.h"

namespace skipdec {
namespace {

constexpr int kPanelRows = 4;
constexpr int blocks_at_once(int rows) { return rows == 1 ? 2 : 1; }

}  // namespace
}  // namespace skipdec

#include "float16/multiply.inc.h"

namespace skipdec {
const HalfKernels& portable_half_kernels() { return kKernels; }
}  // namespace skipdec
