// The mailbox of a request, from which its caller takes deltas as they arrive, and completions at
// the end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "errors.h"
#include "scheduling/running_batch.h"

namespace skipdec::runtime {

// The progress of a request as its caller sees it.
enum class Progress { kRunning, kEnded, kClosed };

// A delta taken from a mailbox, and the request's progress at that moment.
struct Received {
  std::optional<Delta> delta;
  Progress progress = Progress::kRunning;
};

// Throws Error (kUsage) for a timeout that is NaN.
void require_timeout(double timeout);

// Waits up to ``timeout`` seconds (negative: without limit); returns true if ``condition`` holds.
template <class Condition>
bool wait_for(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, double timeout,
              Condition condition) {
  constexpr double kLongest = 1e9;  // seconds; more would overflow the clock
  if (timeout < 0 || timeout > kLongest) {
    changed.wait(lock, condition);
    return true;
  }
  return changed.wait_for(lock, std::chrono::duration<double>(timeout), condition);
}

// The engine's thread fills it; its caller reads it from any thread, even after the engine is
// closed.
class Mailbox {
 public:
  // Waits up to ``timeout`` seconds (negative: without limit) for a delta. If none comes,
  // ``progress`` says why: the wait timed out (kRunning), or the request ended or was closed.
  Received next(double timeout);
  // Waits for the end; returns true if it comes in time.
  bool wait(double timeout);
  Progress progress() const;
  // Throws the reason if the mailbox was closed.
  void require_open() const;
  // Returns the final completions; call it after the request has ended.
  const std::vector<Completion>& completions() const { return completions_; }

  // Methods for the engine's thread.
  void put(Delta delta);
  void end(std::vector<Completion> completions);
  void close(const Error& reason);

 private:
  mutable std::mutex mutex_;
  // Separate, so that tokens do not wake threads that wait for the end.
  std::condition_variable came_, ended_;
  std::deque<Delta> deltas_;
  std::vector<Completion> completions_;
  Progress progress_ = Progress::kRunning;
  std::optional<Error> reason_;
};

}  // namespace skipdec::runtime
