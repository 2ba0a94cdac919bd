#pragma once

#include <chrono>
#include <ctime>

namespace skipdec::runtime {

// Returns the seconds of a monotonic clock.
inline double seconds_now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the processor seconds of this thread, which other work on the machine does not increase,
// or seconds of a clock if the system does not count them.
inline double thread_seconds_now() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return seconds_now();
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace skipdec::runtime
