// When requests that wait are let in, while others run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace skipdec::runtime {

// What an admission decides by; times in seconds of one clock.
struct Situation {
  std::int64_t waiting = 0;  // rows
  std::int64_t free = 0;     // slots
  std::int64_t running = 0;  // rows
  double since = 0;          // when the first that waits could have been let in
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

  // Nothing lets requests in; else the time at which to ask again at the latest.
  virtual std::optional<double> wait_until(const Situation& situation) const = 0;
};

}  // namespace skipdec::runtime
