#include "norms/normalization.h"

#include "norms/tables.h"

namespace skipdec {

Normalize normalize_on(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512_normalize();
    case InstructionSet::kAvxVnni:
    case InstructionSet::kAvx2:
      return avx2_normalize();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_normalize();
#endif
    default:
      return portable_normalize();
  }
}

}  // namespace skipdec
