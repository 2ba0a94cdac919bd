#include "service/mailbox.h"

#include <cmath>
#include <utility>

namespace skipdec::runtime {

void require_timeout(double timeout) {
  if (!std::isnan(timeout)) return;
  throw Error(Status::kUsage, "timeout",
              "is nan; allowed: seconds, 0 for a poll, or negative to wait without limit");
}

Received Mailbox::next(double timeout) {
  std::unique_lock lock(mutex_);
  wait_for(came_, lock, timeout,
           [&] { return !deltas_.empty() || progress_ != Progress::kRunning; });
  Received received{std::nullopt, progress_};
  if (deltas_.empty()) return received;
  received.delta = std::move(deltas_.front());
  deltas_.pop_front();
  return received;
}

bool Mailbox::wait(double timeout) {
  std::unique_lock lock(mutex_);
  return wait_for(ended_, lock, timeout, [&] { return progress_ != Progress::kRunning; });
}

Progress Mailbox::progress() const {
  const std::scoped_lock lock(mutex_);
  return progress_;
}

void Mailbox::require_open() const {
  const std::scoped_lock lock(mutex_);
  if (reason_) throw Error(*reason_);
}

void Mailbox::put(Delta delta) {
  {
    const std::scoped_lock lock(mutex_);
    deltas_.push_back(std::move(delta));
  }
  came_.notify_all();
}

void Mailbox::end(std::vector<Completion> completions) {
  {
    const std::scoped_lock lock(mutex_);
    completions_ = std::move(completions);
    progress_ = Progress::kEnded;
  }
  came_.notify_all();
  ended_.notify_all();
}

void Mailbox::close(const Error& reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (progress_ != Progress::kRunning) return;
    progress_ = Progress::kClosed;
    reason_.emplace(reason);
  }
  came_.notify_all();
  ended_.notify_all();
}

}  // namespace skipdec::runtime
