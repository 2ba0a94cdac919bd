#include "attention/kernels.h"

#include <algorithm>

#include "attention/sizes.h"

namespace skipdec::attention {
namespace {

const Kernels* table_for(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512_kernels();
    case InstructionSet::kAvxVnni:
    case InstructionSet::kAvx2:
      return avx2_kernels();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_kernels();
#endif
    default:
      return portable_kernels();
  }
}

}  // namespace

std::int64_t longest(const Call& call) {
  const std::int64_t* first = call.write_indices;
  const std::int64_t start = *std::max_element(first, first + call.batch);
  return std::min(start + call.tokens, call.capacity);
}

const Kernels& kernels_for(InstructionSet set, CacheType type) {
  return table_for(set)[static_cast<std::size_t>(type)];
}

std::int64_t span_limit(const Call& call) {
  constexpr std::int64_t kScoreFloats = 65536;  // 256 KiB, part of an L2 cache
  constexpr std::int64_t kStep = 8;
  const std::int64_t fitting = kScoreFloats / score_stride(longest(call)) / kStep * kStep;
  return std::clamp(fitting, kStep, kLongestSpan);
}

std::size_t scratch_floats(const Call& call, std::int64_t queries) {
  const std::int64_t width = (call.head_size + 15) / 16 * 16;
  const std::int64_t tile = std::max(kValueTileFloats, 16 * width);
  return static_cast<std::size_t>(queries * (2 * width + score_stride(longest(call))) + tile);
}

}  // namespace skipdec::attention
