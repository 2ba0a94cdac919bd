// Admission: when waiting requests may join the running ones.
#pragma once

#include <cstdint>
#include <string_view>

namespace skipdec::runtime {

// Admits requests when nothing runs, when ``min_free`` slots are free and as many rows wait, or
// ``hold_ms`` after the first request could have been admitted. With zeros, admission is first
// come, first served. Requests admitted together run at similar depths and read weights once for
// their prompts.
struct Admission {
  std::int64_t min_free = 0;
  std::int64_t hold_ms = 0;

  // Parses "fcfs" (also an empty text), "gang" or "gang:min_free=2,hold_ms=8". Throws Error
  // (kUsage) for an unknown name or parameter, one that is given twice, or a value that is not a
  // whole number.
  static Admission parse(std::string_view text);

  // Returns true if requests wait for others while rows run. ``waiting`` and ``running`` are rows;
  // the first request could have been admitted at ``since``, in seconds of one clock.
  bool holds(std::int64_t waiting, std::int64_t free, std::int64_t running, double since,
             double now) const;
};

}  // namespace skipdec::runtime
