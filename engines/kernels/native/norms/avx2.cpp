#if defined(__x86_64__)
#define SKIPDEC_AVX2
#include "norms/normalize.inc.h"
#endif
