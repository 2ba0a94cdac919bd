#include "norms/normalization.h"

#include "norms/tables.h"

namespace skipdec {

const NormKernels& norm_kernels(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512_norm_kernels();
    case InstructionSet::kAvxVnni:
    case InstructionSet::kAvx2:
      return avx2_norm_kernels();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_norm_kernels();
#endif
    default:
      return portable_norm_kernels();
  }
}

}  // namespace skipdec
