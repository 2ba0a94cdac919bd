// What a request's caller sees of it: deltas as they come, completions at its end.
#pragma once

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

// Where a request is, as its caller sees it.
enum class Progress { kRunning, kEnded, kClosed };

// What a caller took out of a mailbox, and where the request was at that very moment.
struct Received {
  std::optional<Delta> delta;
  Progress progress = Progress::kRunning;
};

// The engine's thread fills it; the caller reads it, from any thread. What it holds stays readable
// after the engine is gone.
class Mailbox {
 public:
  // Waits at most ``timeout`` seconds (negative: for ever) for a delta. Without one, ``progress``
  // says why: the wait timed out (kRunning), the request has ended, or it was closed.
  Received next(double timeout);
  // Waits for its end; whether it came.
  bool wait(double timeout);
  Progress progress() const;
  // Throws why it was closed; if it was.
  void require_open() const;
  // Of a request that has ended; they don't change any more.
  const std::vector<Completion>& completions() const { return completions_; }

  // The engine's side.
  void put(Delta delta);
  void end(std::vector<Completion> completions);
  void close(const Error& reason);

 private:
  mutable std::mutex mutex_;
  // Whoever waits for its end is not woken at every token.
  std::condition_variable came_, ended_;
  std::deque<Delta> deltas_;
  std::vector<Completion> completions_;
  Progress progress_ = Progress::kRunning;
  std::optional<Error> reason_;
};

}  // namespace skipdec::runtime
