// Admission: when waiting requests may join those that run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace skipdec::runtime {

// The state that an admission rule decides by; times are seconds of one clock.
struct Situation {
  std::int64_t waiting = 0;  // rows
  std::int64_t free = 0;     // slots
  std::int64_t running = 0;  // rows
  double since = 0;          // when the first waiting request could have been admitted
  double now = 0;
};

class Admission {
 public:
  // "fcfs" admits each request as soon as it fits. "gang:min_free=2,hold_ms=8" admits several at a
  // time, which then run at similar depths and share the reads of weights for their prompts. Empty
  // means fcfs. Throws Error (kUsage) for an unknown name or parameter, or a value that is not a
  // whole number.
  static std::unique_ptr<const Admission> parse(std::string_view text);

  virtual ~Admission() = default;
  Admission() = default;
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Returns the time at which to ask again at the latest; nothing to admit requests now.
  virtual std::optional<double> wait_until(const Situation& situation) const = 0;
};

}  // namespace skipdec::runtime
