#include "sampling/draw.h"

#include "sampling/tables.h"

namespace skipdec {

namespace {

Drawing drawing_on(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512_drawing();
    case InstructionSet::kAvxVnni:
    case InstructionSet::kAvx2:
      return avx2_drawing();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_drawing();
#endif
    default:
      return portable_drawing();
  }
}

}  // namespace

DrawToken draw_token_on(InstructionSet set) { return drawing_on(set).draw_token; }

SumWeights sum_weights_on(InstructionSet set) { return drawing_on(set).sum_weights; }

}  // namespace skipdec
