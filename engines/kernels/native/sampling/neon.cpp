#if defined(__aarch64__)
#define SKIPDEC_NEON
#include "sampling/draw.inc.h"
#endif
