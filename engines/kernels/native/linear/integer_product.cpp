#include "linear/integer_product.h"

#include "linear/tables.h"

namespace skipdec {

const IntegerKernels& integer_kernels(InstructionSet set, std::int64_t rows) {
  static_cast<void>(rows);
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAmx:
    case InstructionSet::kAvx512Vnni:
      return avx512vnni_integer_kernels();
    case InstructionSet::kAvxVnni:
      return avxvnni_integer_kernels();
    case InstructionSet::kAvx2:
      return avx2_integer_kernels();
#endif
#if defined(__aarch64__)
    case InstructionSet::kNeon:
      return neon_integer_kernels();
#endif
    default:
      return portable_integer_kernels();
  }
}

}  // namespace skipdec
