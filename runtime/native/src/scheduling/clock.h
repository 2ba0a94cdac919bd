#pragma once

#include <chrono>

namespace skipdec::runtime {

// Seconds of a clock that never goes back.
inline double seconds_now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace skipdec::runtime
