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
  // "fcfs": whoever fits is let in at once. "gang:min_free=2,hold_ms=8": several at a time, which
  // then stand at like depths and share their prompts' reads of weights. Empty: fcfs. Throws Error
  // (kUsage) for an unknown name or parameter, or a value that is no whole number.
  static std::unique_ptr<const Admission> parse(std::string_view text);

  virtual ~Admission() = default;
  Admission() = default;
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Returns nothing to admit requests now, else the time to ask again at the latest.
  virtual std::optional<double> wait_until(const Situation& situation) const = 0;
};

}  // namespace skipdec::runtime
