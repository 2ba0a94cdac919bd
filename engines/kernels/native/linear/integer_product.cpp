#include "linear/integer_product.h"

#include "linear/tables.h"

namespace skipdec {

const IntegerKernels& integer_kernels(InstructionSet set, std::int64_t rows) {
  static_cast<void>(rows);
#if defined(__x86_64__)
  if (set >= InstructionSet::kAvx512Vnni) return avx512vnni_integer_kernels();
#endif
  static_cast<void>(set);
  return portable_integer_kernels();
}

}  // namespace skipdec
