#pragma once

#include <chrono>
#include <ctime>

namespace skipdec::runtime {

// Seconds of a clock that never goes back.
inline double seconds_now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Processor seconds of this thread, which other work on the machine does not stretch; seconds of a
// clock where the system does not count them.
inline double thread_seconds_now() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return seconds_now();
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace skipdec::runtime
