// Queues of clients that take turns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <utility>

namespace skipdec::runtime {

// Waiting items, one queue per client; clients are visited in turn.
//
// A client's items keep their order of arrival. A client goes to the end of the line when one of
// its items is served or when its first item arrives, so it waits for at most one item of each
// client before it. With one client, the order is that of arrival.
template <class Item>
class ClientQueues {
 public:
  std::int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Queues an item after the others of its client. Keys must differ.
  void add(std::int64_t key, const std::string& client, Item item) {
    auto queue = std::find_if(queues_.begin(), queues_.end(),
                              [&](const Queue& each) { return each.client == client; });
    if (queue == queues_.end()) queue = queues_.insert(queue, Queue{client, {}});
    queue->items.emplace_back(key, std::move(item));
    ++size_;
  }

  // Removes an item that is served; its client's next turn comes after those of all others.
  void serve(std::int64_t key) {
    const auto queue = remove(key);
    if (queue != queues_.end()) queues_.splice(queues_.end(), queues_, queue);
  }

  // Removes a cancelled item, which costs its client no turn; ignores an unknown one.
  void discard(std::int64_t key) { remove(key); }

  // Calls ``visit`` with each item, in the order of service, until it returns false. Allocates
  // nothing.
  template <class Visit>
  void visit_in_turn(const Visit& visit) const {
    bool found = true;
    for (std::size_t round = 0; found; ++round) {
      found = false;
      for (const Queue& queue : queues_) {
        if (round >= queue.items.size()) continue;
        found = true;
        if (!visit(queue.items[round].second)) return;
      }
    }
  }

 private:
  struct Queue {
    std::string client;
    std::deque<std::pair<std::int64_t, Item>> items;
  };
  using Queues = std::list<Queue>;  // in order of their turns, without empty queues

  // Removes an item. Returns its queue, or the end if there is none or it became empty.
  typename Queues::iterator remove(std::int64_t key) {
    for (auto queue = queues_.begin(); queue != queues_.end(); ++queue) {
      const auto item = std::find_if(queue->items.begin(), queue->items.end(),
                                     [&](const auto& each) { return each.first == key; });
      if (item == queue->items.end()) continue;
      queue->items.erase(item);
      --size_;
      if (!queue->items.empty()) return queue;
      queues_.erase(queue);
      break;
    }
    return queues_.end();
  }

  Queues queues_;
  std::int64_t size_ = 0;
};

}  // namespace skipdec::runtime
