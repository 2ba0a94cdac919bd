// The caller's handle of a submitted request.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
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

// The outcome of a callback: the request continues, is cancelled, or fails with the given reason
// because the callback threw.
struct Answer {
  bool goes_on = true;
  std::optional<std::string> failure;
};

// The thread that runs an engine, but only while it runs, because later threads may have the same
// id.
class EngineThread {
 public:
  void begin() { id_ = std::this_thread::get_id(); }
  void end() { id_ = std::thread::id(); }
  bool is_current() const { return id_.load() == std::this_thread::get_id(); }

 private:
  std::atomic<std::thread::id> id_{std::thread::id()};
};

class Ticket {
 public:
  // ``engine_thread`` runs the request and its callback.
  Ticket(std::int64_t num_completions, std::shared_ptr<const EngineThread> engine_thread);

  // Passes ``delta`` to the callback unless the request was released. An exception of the callback
  // becomes the answer.
  Answer deliver(const Delta& delta);
  // Reports each end of a completion that was not reported yet to the callback or, without one, to
  // the mailbox.
  void deliver_ends(FinishReason finish_reason, const std::string& reason);
  // Stops calls of the callback; waits for a call that runs on another thread.
  void release();
  // Throws Error (kUsage) where a wait would never end, which is in a callback of its engine,
  // unless ``timeout`` is 0, and in a forked child. Also throws it if ``timeout`` is NaN.
  void require_may_wait(double timeout) const;
  // Throws Error (kUsage) in a fork of the process that submitted the request.
  void require_own() const;
  // Returns true in a fork of the process that submitted the request.
  bool is_inherited() const;

  std::int64_t number = 0;
  const std::int64_t num_completions;
  TokenSpan prompt;
  SchedulePointer schedule;
  OnDelta on_delta;                                           // empty: deltas go to the mailbox
  double deadline = std::numeric_limits<double>::infinity();  // time of the clock
  Mailbox mailbox;

 private:
  Answer ask(const Delta& delta) const;

  const std::shared_ptr<const EngineThread> engine_thread_;
  const pid_t process_;
  std::vector<bool> has_ended_;      // by completion; used by the engine's thread only
  std::recursive_mutex delivering_;  // the callback may release the request, too
  bool is_released_ = false;
};

}  // namespace skipdec::runtime
