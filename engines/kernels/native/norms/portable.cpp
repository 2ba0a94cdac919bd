#define SKIPDEC_PORTABLE
#include "norms/normalize.inc.h"
