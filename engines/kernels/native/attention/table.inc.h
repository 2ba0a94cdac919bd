// Attention on the instruction set that the including file names.
#include "attention/kernels.h"
#include "attention/sizes.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
#include "simd/functions.inc.h"
#include "simd/chunks.inc.h"
// clang-format on

namespace skipdec::attention {
namespace {

// Register blocking: queries per pass for scores; queries and vectors of values for sums.
#if defined(SKIPDEC_AVX512)
constexpr int kScoreQueries = 8, kValueQueries = 8, kValueColumns = 2;
#else
constexpr int kScoreQueries = 4, kValueQueries = 4, kValueColumns = 1;
#endif

// True if kernels are specialised for head sizes 64, 80, 96 and 128.
#if defined(SKIPDEC_PORTABLE)
constexpr bool kCompiledSizes = false;
#else
constexpr bool kCompiledSizes = true;
#endif

}  // namespace
}  // namespace skipdec::attention

// clang-format off: order matters
#include "attention/heads.inc.h"
#include "attention/cache.inc.h"
#include "attention/decode.inc.h"
#include "attention/prompt.inc.h"
// clang-format on

namespace skipdec::attention {
namespace {

template <class Element, class Layout>
void attend_with(const Call& call, const Span& span, float* scratch) {
  const Layout layout(call.head_size);
  if (span.last - span.first >= kFewestForBlock) {
    attend_block<Element>(call, span, layout, scratch);
    return;
  }
  for (std::int64_t index = span.first; index < span.last; ++index) {
    attend_one<Element>(call, span, index, layout, scratch);
  }
}

template <class Element>
void attend(const Call& call, const Span& span, float* scratch) noexcept {
  if constexpr (kCompiledSizes) {
    switch (call.head_size) {
      case 64:
        return attend_with<Element, WholeChunks<4>>(call, span, scratch);
      case 80:
        return attend_with<Element, WholeChunks<5>>(call, span, scratch);
      case 96:
        return attend_with<Element, WholeChunks<6>>(call, span, scratch);
      case 128:
        return attend_with<Element, WholeChunks<8>>(call, span, scratch);
    }
  }
  attend_with<Element, Chunks>(call, span, scratch);
}

// Indexed by CacheType.
constexpr Kernels kKernels[] = {
    {append<float>, attend<float>},
    {append<Float16>, attend<Float16>},
    {append<Bfloat16>, attend<Bfloat16>},
    {append<std::int8_t>, attend<std::int8_t>},
};

}  // namespace

const Kernels* SKIPDEC_NAMED(kernels)() { return kKernels; }

}  // namespace skipdec::attention

#include "simd/end.inc.h"
