#if defined(__x86_64__)
#define SKIPDEC_AVX2
#include "float16/multiply.inc.h"
#endif
