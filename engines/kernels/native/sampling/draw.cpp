#include "sampling/draw.h"

#include "sampling/tables.h"

namespace skipdec {

DrawToken draw_token_on(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512_draw_token();
    case InstructionSet::kAvxVnni:
    case InstructionSet::kAvx2:
      return avx2_draw_token();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_draw_token();
#endif
    default:
      return portable_draw_token();
  }
}

}  // namespace skipdec
