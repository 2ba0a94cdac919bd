#if defined(__x86_64__)
#define SKIPDEC_AVX2
#include "attention/table.inc.h"
#endif
