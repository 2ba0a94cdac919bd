#define SKIPDEC_PORTABLE
#include "attention/table.inc.h"
