// Table of kernels of the instruction set for which this file is compiled.
#pragma once

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
}  // namespace skipdec::attention
