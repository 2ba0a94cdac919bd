// Properties of this machine's processor.
#pragma once

namespace skipdec::runtime {

// Returns true if this processor adds pairs of u8 x s8 products in 16 bits, as x86 without VNNI
// does: 2 * 255 * 127 = 64770 > 32767. ARM adds in 32 bits.
bool integer_products_may_saturate();

}  // namespace skipdec::runtime
