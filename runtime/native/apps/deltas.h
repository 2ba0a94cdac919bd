// Queue of deltas of several requests, for the thread that prints them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <skipdec/skipdec.hpp>
#include <utility>

namespace skipdec::apps {

// Queues deltas of all requests in order of arrival.
class Deltas {
 public:
  struct Entry {
    std::size_t request;
    Delta delta;
  };

  void add(Entry entry) {
    const std::scoped_lock lock(mutex_);
    entries_.push_back(std::move(entry));
    arrived_.notify_one();
  }

  // Returns the next delta; std::nullopt if none arrives within ``patience``.
  std::optional<Entry> next(Seconds patience) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!arrived_.wait_for(lock, patience, [this] { return !entries_.empty(); })) return {};
    std::optional<Entry> entry(std::move(entries_.front()));
    entries_.pop_front();
    return entry;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Entry> entries_;
};

}  // namespace skipdec::apps
