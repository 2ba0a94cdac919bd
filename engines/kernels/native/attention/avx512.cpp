#if defined(__x86_64__)
#define SKIPDEC_AVX512
#include "attention/table.inc.h"
#endif
