#include "scheduling/scheduler.h"

#include <algorithm>
#include <numeric>

#include "constants.h"

namespace skipdec::runtime {

namespace {

// A row of any length may be padded by this many tokens, because running them costs less than
// reading the weights for another call (as much as 12 tokens of OPT-1.3b in int8 on two cores).
using constants::kCheapPadding;

}  // namespace

Scheduler::Scheduler(std::int64_t slots, std::int64_t max_prefill_tokens,
                     const Admission& admission, Fits fits, RunsInChunks runs_in_chunks)
    : slots_(slots),
      max_prefill_tokens_(max_prefill_tokens),
      admission_(admission),
      fits_(std::move(fits)),
      runs_in_chunks_(std::move(runs_in_chunks)) {}

std::int64_t Scheduler::running_rows() const {
  return std::accumulate(running_.begin(), running_.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& each) { return sum + each.second; });
}

void Scheduler::cancel(std::int64_t number) {
  waiting_.discard(number);
  running_.erase(number);
  if (in_chunks() == number) chunked_.reset();
}

void Scheduler::prompt_ran() {
  running_[chunked_->number] = chunked_->rows;
  chunked_.reset();
}

void Scheduler::row_ended(std::int64_t number) {
  const auto found = running_.find(number);
  if (--found->second == 0) running_.erase(found);
}

Action Scheduler::next_action(double now) {
  if (owes_step_ && !running_.empty()) {
    owes_step_ = false;
    return Decode{};
  }
  owes_step_ = false;
  if (chunked_) {
    owes_step_ = true;
    return Chunk{chunked_->number, false};
  }
  const std::vector<Job> next = group();
  if (!next.empty() && !holds(now)) return let_in(next);
  if (next.empty()) since_.reset();
  if (!running_.empty()) return Decode{};
  return Wait{};
}

// Returns the job whose turn it is, if it fits, and others of similar length that fit with it.
std::vector<Job> Scheduler::group() const {
  std::vector<Job> found;
  std::int64_t free_slots = free();
  std::int64_t shortest = 0;
  std::int64_t longest = 0;
  waiting_.visit_in_turn([&](const Job& job) {  // returns whether others may be admitted with it
    const std::int64_t low =
        std::min(found.empty() ? job.prompt_length : shortest, job.prompt_length);
    const std::int64_t high = std::max(longest, job.prompt_length);
    const auto calls = static_cast<std::int64_t>(found.size()) + 1;
    const bool is_alike =
        high <= std::max(2 * low, low + kCheapPadding) && high * calls <= max_prefill_tokens_;
    if (!found.empty() && !is_alike) return true;
    if (job.rows > free_slots) return false;  // later requests must not overtake it
    const bool runs_alone = runs_in_chunks_(job);
    if (!found.empty() && runs_alone) return true;
    found.push_back(job);
    if (!fits_(found)) {
      found.pop_back();
      return false;
    }
    free_slots -= job.rows;
    shortest = low;
    longest = high;
    return !runs_alone;
  });
  return found;
}

bool Scheduler::holds(double now) {
  since_ = since_.value_or(now);
  std::int64_t waiting = 0;
  waiting_.visit_in_turn([&](const Job& job) {
    waiting += job.rows;
    return true;
  });
  return admission_.holds(waiting, free(), running_rows(), *since_, now);
}

Action Scheduler::let_in(const std::vector<Job>& group) {
  const Job& first = group.front();
  const bool in_chunks = runs_in_chunks_(first);
  std::map<std::int64_t, std::int64_t> begun;
  Prefill prefill;
  for (const Job& job : group) {
    begun[job.number] = job.rows;
    prefill.numbers.push_back(job.number);
  }
  // Nothing below allocates memory.
  since_.reset();
  owes_step_ = true;
  for (const Job& job : group) waiting_.serve(job.number);
  if (in_chunks) {
    chunked_ = first;
    return Chunk{first.number, true};
  }
  running_.merge(begun);
  return prefill;
}

}  // namespace skipdec::runtime
