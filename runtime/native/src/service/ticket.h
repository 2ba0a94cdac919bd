// A request that was submitted, as its caller holds it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "schedule/schedule.h"
#include "service/mailbox.h"

namespace skipdec::runtime {

// Called on the engine's thread for each delta, in order; false cancels the request.
using OnDelta = std::function<bool(const Delta&)>;

// What a callback wants of its request: that it goes on, is cancelled, or, because the callback
// threw, fails for the reason given.
struct Answer {
  bool goes_on = true;
  std::optional<std::string> failure;
};

class Ticket {
 public:
  // ``engine_thread`` runs the request and its callback.
  Ticket(std::int64_t num_completions, std::thread::id engine_thread);

  // Hands ``delta`` to the callback unless the request was released. Nothing is thrown: what the
  // callback throws is the answer.
  Answer tell(const Delta& delta);
  // Tells the callback the end of each completion whose end it was not told.
  void tell_ends(FinishReason finish_reason, const std::string& reason);
  // The callback is not called any more; waits for one that runs in another thread.
  void release();
  // Throws Error (kUsage) where a wait would never end: within a callback of its engine, unless
  // ``timeout`` is 0, and in a forked child.
  void require_may_wait(double timeout) const;
  // Whether this process is a fork of the one that submitted it.
  bool is_inherited() const;

  std::int64_t number = 0;
  const std::int64_t num_completions;
  TokenSpan prompt;
  SchedulePointer schedule;
  OnDelta on_delta;     // empty: deltas go to the mailbox
  double deadline = 0;  // of the clock; 0: none
  Mailbox mailbox;

 private:
  Answer ask(const Delta& delta) const;

  const std::thread::id engine_thread_;
  const pid_t process_;
  std::vector<bool> is_end_told_;  // of each completion; of the engine's thread alone
  std::recursive_mutex telling_;   // released within the callback, too
  bool is_released_ = false;
};

}  // namespace skipdec::runtime
