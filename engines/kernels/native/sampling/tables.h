// What each source file of this folder makes for its instruction set.
#pragma once

#include "sampling/draw.h"

namespace skipdec {

DrawToken portable_draw_token();
#if defined(__x86_64__)
DrawToken avx2_draw_token();
DrawToken avx512_draw_token();
#elif defined(__aarch64__)
DrawToken neon_draw_token();
#endif

}  // namespace skipdec
