#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "attention/kernels.h"
#include "attention/sizes.h"
#include "simd/element.h"

// clang-format off: order matters
#include "simd/vector_portable.inc.h"
#include "simd/functions.inc.h"
#include "simd/chunks.inc.h"
// clang-format on

namespace skipdec::attention {
namespace {

// Register blocking: queries per pass for scores; queries and vectors of values for sums.
constexpr int kScoreQueries = 4;
constexpr int kValueQueries = 4;
constexpr int kValueColumns = 1;

constexpr bool kCompiledSizes = false;  // specialised for head sizes 64, 80, 96 and 128

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

const Kernels* portable_kernels() { return kKernels; }

}  // namespace skipdec::attention
