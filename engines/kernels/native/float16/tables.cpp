#include "float16/tables.h"

namespace skipdec {

const HalfKernels& half_kernels(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512_half_kernels();
    case InstructionSet::kAvxVnni:
    case InstructionSet::kAvx2:
      return avx2_half_kernels();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_half_kernels();
#endif
    default:
      return portable_half_kernels();
  }
}

}  // namespace skipdec
