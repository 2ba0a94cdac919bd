// The part of Service that its own thread runs.
#include <algorithm>
#include <map>
#include <utility>

#include "host/process_exit.h"
#include "scheduling/clock.h"
#include "service/service.h"

namespace skipdec::runtime {

namespace {

constexpr const char* kClosed = "closed";  // stop_reason of requests that `close` aborts

}  // namespace

void Service::run() {
  engine_thread_->begin();
  std::optional<std::string> failure;
  try {
    while (take_in()) {
      post(step());
      score_next();
    }
  } catch (const Error& error) {
    if (error.status() != Status::kClosed) failure = error.what();  // the process exits
  } catch (const std::exception& error) {
    failure = error.what();
  }
  end_all(failure);
  engine_thread_->end();
}

std::vector<Delta> Service::step() {
  const NativeWork work;
  return batch_->step(seconds_now());
}

// Takes new requests, cancellations and scores, and waits for them while idle; returns false to
// stop.
bool Service::take_in() {
  std::deque<std::int64_t> cancellations;
  std::vector<std::pair<std::shared_ptr<Ticket>, std::string>> refused;
  {
    std::unique_lock lock(mutex_);
    const auto has_news = [this] {
      return is_stopping_ || !arrivals_.empty() || !cancellations_.empty() || !new_scores_.empty();
    };
    if (!batch_->is_busy() && scores_.empty()) changed_.wait(lock, has_news);
    if (is_stopping_) return false;
    while (!arrivals_.empty()) {  // under the lock, so that each always counts as waiting
      Arrival arrival = std::move(arrivals_.front());
      arrivals_.pop_front();
      const std::shared_ptr<Ticket> ticket = arrival.ticket;
      try {
        add(std::move(arrival));
      } catch (const std::exception& error) {  // only this request is at fault
        refused.emplace_back(ticket, error.what());
      }
    }
    cancellations.swap(cancellations_);
    scores_.splice(scores_.end(), new_scores_);
  }
  for (const auto& [ticket, reason] : refused) end_refused(*ticket, reason);
  for (const std::int64_t number : cancellations) post(batch_->abort(number, "cancelled"));
  end_late();
  return true;
}

void Service::add(Arrival arrival) {
  const std::int64_t number = arrival.ticket->number;
  const auto place = open_.emplace(number, std::move(arrival.ticket)).first;
  try {
    batch_->add(number, std::move(arrival.request), arrival.start);
  } catch (...) {
    open_.erase(place);
    throw;
  }
}

// Ends a request that could not be added to the batch.
void Service::end_refused(Ticket& ticket, const std::string& reason) {
  Completion failed;
  failed.finish_reason = FinishReason::kError;
  failed.stop_reason = reason;
  ticket.deliver_ends(FinishReason::kError, reason);
  ticket.mailbox.end(
      std::vector<Completion>(static_cast<std::size_t>(ticket.num_completions), failed));
  count_ended(1);
}

// Ends requests whose deadline has passed.
void Service::end_late() {
  std::vector<std::int64_t> late;
  const double now = seconds_now();
  for (const auto& [number, ticket] : open_) {
    if (now > ticket->deadline) late.push_back(number);
  }
  for (const std::int64_t number : late) post(batch_->abort(number, "deadline"));
}

// Scores a waiting text if it is the turn of scoring and memory is free.
void Service::score_next() {
  batch_->set_admits(true);
  if (scores_.empty()) return;
  const EngineStats before = batch_->stats();
  if (batch_->is_busy()) {
    if (!turns_.is_due(before)) return;
    const bool fits = batch_->fits(scores_.front().request);
    batch_->set_admits(fits);  // otherwise memory that becomes free would go to others
    if (!fits) return;
  }
  Score score = std::move(scores_.front());
  scores_.pop_front();
  try {
    const NativeWork work;
    score.result.set_value(batch_->score(score.request));
  } catch (const std::exception&) {
    score.result.set_exception(std::current_exception());
  }
  turns_.scored(before, batch_->stats());
  count_ended(1);
}

void Service::count_ended(std::int64_t count) {
  const std::scoped_lock lock(mutex_);
  num_open_ -= count;
  changed_.notify_all();
}

// Delivers deltas, and the completions of requests that ended, to their callers. If a callback
// refuses a token, later tokens of the same pass are undone, because without drafts there would be
// none.
void Service::post(const std::vector<Delta>& deltas) {
  std::vector<std::int64_t> touched;
  std::map<std::int64_t, Answer> unwanted;
  bool is_behind_guess = false;
  for (const Delta& delta : deltas) {
    if (std::exchange(is_behind_guess, delta.drafted) && unwanted.count(delta.number) > 0) {
      batch_->undo(delta);
      continue;
    }
    const std::shared_ptr<Ticket>& ticket = open_.at(delta.number);
    if (!ticket->on_delta) {
      ticket->mailbox.put(delta);
    } else if (Answer answer = ticket->deliver(delta); !answer.goes_on) {
      unwanted.emplace(delta.number, std::move(answer));
    }
    if (delta.finish_reason) touched.push_back(delta.number);
  }
  std::int64_t ended = 0;
  for (const std::int64_t number : touched) {
    const auto found = open_.find(number);
    if (found == open_.end() || !batch_->has_ended(number)) continue;
    found->second->mailbox.end(batch_->take(number));
    open_.erase(found);
    ++ended;
  }
  if (ended > 0) count_ended(ended);
  for (const auto& [number, answer] : unwanted) {
    if (open_.count(number) == 0) continue;
    post(answer.failure ? batch_->fail(number, *answer.failure)
                        : batch_->abort(number, "cancelled"));
  }
}

// Ends all requests: wakes every waiting caller and reports missing ends to callbacks.
void Service::end_all(const std::optional<std::string>& failure) {
  const Error reason = failure ? Error(Status::kEngine, "engine", *failure)
                               : Error(Status::kClosed, "engine", "was closed");
  std::list<Arrival> arrivals;
  {
    const std::scoped_lock lock(mutex_);
    if (!refusal_ || failure) refusal_.emplace(reason);
    arrivals.swap(arrivals_);
    scores_.splice(scores_.end(), new_scores_);
  }
  for (const auto& [number, ticket] : open_) {
    if (ticket->on_delta && !failure) {  // with the text held back for stop strings
      for (const Delta& delta : batch_->abort(number, kClosed)) ticket->deliver(delta);
    }
    end(*ticket, reason);
  }
  for (const Arrival& arrival : arrivals) end(*arrival.ticket, reason);
  for (Score& score : scores_) score.result.set_exception(std::make_exception_ptr(reason));
  open_.clear();
  scores_.clear();
  const std::scoped_lock lock(mutex_);
  num_open_ = 0;
  changed_.notify_all();
}

void Service::end(Ticket& ticket, const Error& reason) {
  const bool is_failure = reason.status() == Status::kEngine;
  if (ticket.on_delta) {
    ticket.deliver_ends(is_failure ? FinishReason::kError : FinishReason::kAbort,
                        is_failure ? reason.what() : kClosed);
  }
  ticket.mailbox.close(reason);
}

}  // namespace skipdec::runtime
