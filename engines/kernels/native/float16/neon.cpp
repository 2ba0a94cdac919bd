#if defined(__aarch64__)
#define SKIPDEC_NEON
#include "float16/multiply.inc.h"
#endif
