#include "host/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace skipdec::runtime {

bool integer_products_may_saturate() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_avx512 = __builtin_cpu_supports("avx512f");  // includes support by the system
  const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && has_avx512 && (ecx >> 11 & 1) != 0)
    return false;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && has_avx2 && (eax >> 4 & 1) != 0)
    return false;
  return true;
#else
  return false;
#endif
}

}  // namespace skipdec::runtime
