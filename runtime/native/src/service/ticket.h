// A request that was submitted, as its caller holds it.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "schedule/schedule.h"
#include "service/mailbox.h"

namespace skipdec::runtime {

// Called on the engine's thread for each delta, in order; false cancels the request.
using OnDelta = std::function<bool(const Delta&)>;

class Ticket {
 public:
  // Hands ``delta`` to the callback, unless it was released; false cancels the request.
  bool tell(const Delta& delta);
  // The callback is not called any more; waits for one that runs in another thread.
  void release();

  std::int64_t number = 0;
  std::int64_t num_completions = 1;
  TokenSpan prompt;
  SchedulePointer schedule;
  OnDelta on_delta;     // empty: deltas go to the mailbox
  double deadline = 0;  // of the clock; 0: none
  Mailbox mailbox;

 private:
  std::recursive_mutex telling_;  // released within the callback, too
  bool is_released_ = false;
};

}  // namespace skipdec::runtime
