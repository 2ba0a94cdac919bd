#if defined(__aarch64__)
#define SKIPDEC_NEON
#include "floats/multiply.inc.h"
#endif
