#if defined(__aarch64__)
#define SKIPDEC_NEON
#include "norms/normalize.inc.h"
#endif
