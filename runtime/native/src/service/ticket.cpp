#include "service/ticket.h"

#include <unistd.h>

#include <exception>
#include <utility>

namespace skipdec::runtime {

Ticket::Ticket(std::int64_t num_completions, std::shared_ptr<const EngineThread> engine_thread)
    : num_completions(num_completions),
      engine_thread_(std::move(engine_thread)),
      process_(getpid()),
      has_ended_(static_cast<std::size_t>(num_completions)) {}

Answer Ticket::deliver(const Delta& delta) {
  const std::scoped_lock lock(delivering_);
  if (delta.finish_reason) has_ended_.at(static_cast<std::size_t>(delta.index)) = true;
  return is_released_ ? Answer{} : ask(delta);
}

Answer Ticket::ask(const Delta& delta) const {
  try {
    return {on_delta(delta), std::nullopt};
  } catch (const std::exception& error) {
    return {false, std::string("its callback threw: ") + error.what()};
  } catch (...) {
    return {false, "its callback threw"};
  }
}

void Ticket::deliver_ends(FinishReason finish_reason, const std::string& reason) {
  for (std::int64_t index = 0; index < num_completions; ++index) {
    if (has_ended_[static_cast<std::size_t>(index)]) continue;
    Delta end;
    end.number = number;
    end.index = index;
    end.finish_reason = finish_reason;
    end.stop_reason = reason;
    if (on_delta) {
      deliver(end);
    } else {
      mailbox.put(std::move(end));
    }
  }
}

void Ticket::release() {
  const std::scoped_lock lock(delivering_);
  is_released_ = true;
}

void Ticket::require_may_wait(double timeout) const {
  require_timeout(timeout);
  require_own();
  if (timeout != 0 && engine_thread_->is_current()) {
    throw Error(
        Status::kUsage, "request",
        "can't be waited for within a callback, which runs on the engine's thread; wait on another "
        "thread, or poll with a timeout of 0");
  }
}

void Ticket::require_own() const {
  if (!is_inherited()) return;
  throw Error(
      Status::kUsage, "request",
      "was submitted by process " + std::to_string(process_) + ", of which this process, " +
          std::to_string(getpid()) +
          ", is a fork: threads don't survive a fork; submit it here to an engine of this process");
}

bool Ticket::is_inherited() const { return process_ != getpid(); }

}  // namespace skipdec::runtime
