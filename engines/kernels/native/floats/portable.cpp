#define SKIPDEC_PORTABLE
#include "floats/multiply.inc.h"
