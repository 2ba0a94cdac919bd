#define SKIPDEC_PORTABLE
#include "sampling/draw.inc.h"
