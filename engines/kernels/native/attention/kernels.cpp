#include "attention/kernels.h"

#include <algorithm>

#include "attention/sizes.h"

namespace skipdec::attention {

std::int64_t longest(const Call& call) {
  const std::int64_t* first = call.write_indices;
  const std::int64_t start = *std::max_element(first, first + call.batch);
  return std::min(start + call.tokens, call.capacity);
}

const Kernels& kernels_for(InstructionSet set, CacheType type) {
  return kernels(set)[static_cast<std::size_t>(type)];
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
