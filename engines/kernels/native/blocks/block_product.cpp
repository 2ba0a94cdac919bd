#include "blocks/block_product.h"

#include "blocks/tables.h"

namespace skipdec {

const BlockKernels& block_kernels(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512vnni_block_kernels();
    case InstructionSet::kAvxVnni:
      return avxvnni_block_kernels();
    case InstructionSet::kAvx2:
      return avx2_block_kernels();
#elif defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_block_kernels();
#endif
    default:
      return portable_block_kernels();
  }
}

}  // namespace skipdec
