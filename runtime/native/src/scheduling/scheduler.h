// Scheduler: decides whether a running batch runs prompts, a chunk of a prompt, a step, or nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "scheduling/admission.h"
#include "scheduling/client_queues.h"

namespace skipdec::runtime {

// The part of a request that scheduling needs: its number, prompt length and completions.
struct Job {
  std::int64_t number = 0;
  std::int64_t prompt_length = 0;
  std::int64_t rows = 1;
};

// Run these requests' prompts in one call; they run from then on.
struct Prefill {
  std::vector<std::int64_t> numbers;
};
// Run the next tokens of a prompt; the caller calls `prompt_ran` after the last ones.
struct Chunk {
  std::int64_t number = 0;
  bool is_first = false;
};
// Run a step of all running rows.
struct Decode {};
// Nothing can run before a request arrives.
struct Wait {};
using Action = std::variant<Prefill, Chunk, Decode, Wait>;

// Admits requests to ``slots`` rows. It does not run anything or read a clock.
//
// Clients take turns, one request each (`ClientQueues`); requests of one client are served first
// come, first served. Prompts of similar length (the shortest at least half the longest) share a
// call of at most ``max_prefill_tokens``, padding included. After a call for prompts comes a step,
// so that the gap between two tokens of a text is at most one such call and one step. The next call
// for prompts includes the request whose turn it is; no request overtakes it while it waits for
// rows or memory, so nobody starves.
class Scheduler {
 public:
  // Returns true if the KV memory holds these jobs together.
  using Fits = std::function<bool(const std::vector<Job>&)>;
  // Returns true if the job's prompt runs alone, in chunks.
  using RunsInChunks = std::function<bool(const Job&)>;

  Scheduler(std::int64_t slots, std::int64_t max_prefill_tokens, const Admission& admission,
            Fits fits, RunsInChunks runs_in_chunks);

  std::int64_t waiting() const { return waiting_.size(); }
  bool is_busy() const { return !waiting_.empty() || !running_.empty() || chunked_.has_value(); }
  // The request whose prompt runs in chunks.
  std::optional<std::int64_t> in_chunks() const {
    return chunked_ ? std::optional(chunked_->number) : std::nullopt;
  }
  // Rows of a prompt in progress do not count yet.
  std::int64_t running_rows() const;

  // Queues a request, which has at most as many rows as there are slots. Requests without a
  // ``client`` belong to one client.
  void add(const Job& job, const std::string& client = {}) {
    waiting_.add(job.number, client, job);
  }
  // Forgets a request, waiting or running.
  void cancel(std::int64_t number);
  // Notes that the prompt in chunks has run to its end: its request runs from now on.
  void prompt_ran();
  // Notes that one row of a running request has ended.
  void row_ended(std::int64_t number);
  // Returns the action for ``now``; the caller runs it before it asks again. If this throws for
  // lack of memory, no request has been admitted.
  Action next_action(double now);

 private:
  std::int64_t free() const { return slots_ - running_rows(); }
  std::vector<Job> group() const;
  // Returns true if requests that could be admitted wait for others; the time counts from the first
  // call.
  bool holds(double now);
  Action let_in(const std::vector<Job>& group);

  std::int64_t slots_, max_prefill_tokens_;
  Admission admission_;
  Fits fits_;
  RunsInChunks runs_in_chunks_;
  ClientQueues<Job> waiting_;
  std::map<std::int64_t, std::int64_t> running_;  // number -> running rows
  std::optional<Job> chunked_;                    // whose prompt runs in chunks
  bool owes_step_ = false;
  std::optional<double> since_;  // when the first waiting job could have been admitted
};

}  // namespace skipdec::runtime
