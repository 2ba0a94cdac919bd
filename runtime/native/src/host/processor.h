// This machine's processor, and how much of it this process may use.
#pragma once

#include <string>

namespace skipdec::runtime {

// Processors that this process may keep busy: those of its affinity, within the quota of its
// control groups (1.5 processors count as 2).
int available_processors();

// Whether this processor adds pairs of u8 x s8 products in 16 bits, as x86 without VNNI does:
// 2 * 255 * 127 = 64770 > 32767. ARM adds in 32 bits.
bool integer_products_may_saturate();

// The quota of the control groups that the files of ``process``, "/proc/self" say, name; 0: none.
double processor_quota(const std::string& process);

}  // namespace skipdec::runtime
