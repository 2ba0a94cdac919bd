#include "blocks/block_product.h"

#include "blocks/tables.h"

namespace skipdec {

const BlockKernels& block_kernels(InstructionSet set) {
#if defined(__x86_64__)
  if (set >= InstructionSet::kAvx512Vnni) return avx512vnni_block_kernels();
#endif
  static_cast<void>(set);
  return portable_block_kernels();
}

}  // namespace skipdec
