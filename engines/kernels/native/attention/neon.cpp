#if defined(__aarch64__)
#define SKIPDEC_NEON
#include "attention/table.inc.h"
#endif
