#if defined(__x86_64__)
#define SKIPDEC_AVX2
#include "floats/multiply.inc.h"
#endif
