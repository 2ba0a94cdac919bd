#include "service/mailbox.h"

#include <chrono>
#include <utility>

namespace skipdec::runtime {

template <class Condition>
bool Mailbox::wait_for(std::unique_lock<std::mutex>& lock, double timeout, Condition condition) {
  constexpr double kLongest = 1e9;  // seconds; more would overflow the clock's
  if (timeout < 0 || timeout > kLongest) {
    changed_.wait(lock, condition);
    return true;
  }
  return changed_.wait_for(lock, std::chrono::duration<double>(timeout), condition);
}

std::optional<Delta> Mailbox::next(double timeout) {
  std::unique_lock lock(mutex_);
  wait_for(lock, timeout, [&] { return !deltas_.empty() || progress_ != Progress::kRunning; });
  if (deltas_.empty()) return std::nullopt;
  Delta delta = std::move(deltas_.front());
  deltas_.pop_front();
  return delta;
}

bool Mailbox::wait(double timeout) {
  std::unique_lock lock(mutex_);
  return wait_for(lock, timeout, [&] { return progress_ != Progress::kRunning; });
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
  changed_.notify_all();
}

void Mailbox::end(std::vector<Completion> completions) {
  {
    const std::scoped_lock lock(mutex_);
    completions_ = std::move(completions);
    progress_ = Progress::kEnded;
  }
  changed_.notify_all();
}

void Mailbox::close(const Error& reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (progress_ != Progress::kRunning) return;
    progress_ = Progress::kClosed;
    reason_.emplace(reason);
  }
  changed_.notify_all();
}

}  // namespace skipdec::runtime
