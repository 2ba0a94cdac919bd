#define SKIPDEC_PORTABLE
#include "float16/multiply.inc.h"
