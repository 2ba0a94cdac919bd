// What an engine does next: a prompt, a part of one, a step, or nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduling/admission.h"
#include "scheduling/client_queues.h"

namespace skipdec::runtime {

// A request as far as scheduling goes: its number, its prompt's tokens, its completions.
struct Job {
  std::int64_t number = 0;
  std::int64_t prompt_length = 0;
  std::int64_t rows = 1;
};

// Run these requests' prompts in one call; they run from then on.
struct Prefill {
  std::vector<std::int64_t> numbers;
};
// Run tokens ``start`` ... ``stop`` - 1 of a long prompt; at its end the request runs.
struct Chunk {
  std::int64_t number = 0, start = 0, stop = 0;
};
// Run a step of all rows that run.
struct Decode {};
// Nothing can be done before ``until``, seconds of the clock; none: before something comes.
struct Wait {
  std::optional<double> until;
};
using Action = std::variant<Prefill, Chunk, Decode, Wait>;

// Lets requests into ``slots`` rows; it runs nothing itself and reads no clock.
//
// Clients take turns, a request each (`ClientQueues`); requests of one client are let in first
// come, first served. Prompts of like length (the shortest at least half the longest) share a call
// of at most ``max_prefill_tokens``, padding included. Longer ones run alone, in chunks of that
// many. After a call for prompts comes a step, so that the gap between two tokens of a text is at
// most one such call and one step. The next call for prompts has the request whose turn it is,
// which none passes while it waits for rows or memory, so nobody starves.
class Scheduler {
 public:
  // Whether jobs can be let in together, by memory; asked for what is let in next.
  using Fits = std::function<bool(const std::vector<Job>&)>;
  // How many of a prompt's first tokens need not run; it then runs alone, in chunks from there on.
  using KeptTokens = std::function<std::int64_t(const Job&)>;

  Scheduler(std::int64_t slots, std::int64_t max_prefill_tokens,
            std::unique_ptr<const Admission> admission, Fits fits, KeptTokens kept_tokens);

  std::int64_t waiting() const { return waiting_.size(); }
  bool is_busy() const { return !waiting_.empty() || !running_.empty() || chunked_.has_value(); }
  // Those of a prompt that is under way in chunks do not run yet.
  std::int64_t running_rows() const;

  // Lets a request wait, which has at most as many rows as there are slots. ``client``: who asks;
  // requests without a name are those of one client.
  void add(const Job& job, const std::string& client = {}) {
    waiting_.add(job.number, client, job);
  }
  // Forgets a request, wherever it is.
  void cancel(std::int64_t number);
  // One row of a running request has ended.
  void row_ended(std::int64_t number);
  // What to do at ``now``; the caller does it before it asks again.
  Action next_action(double now);

 private:
  std::int64_t free() const { return slots_ - running_rows(); }
  std::vector<Job> group() const;
  bool runs_in_chunks(const Job& job) const;
  std::optional<double> held_until(const std::vector<Job>& group, double now);
  Action let_in(const std::vector<Job>& group);
  Chunk next_chunk(const Job& job, std::int64_t start);

  std::int64_t slots_, max_prefill_tokens_;
  std::unique_ptr<const Admission> admission_;
  Fits fits_;
  KeptTokens kept_tokens_;
  ClientQueues<Job> waiting_;
  std::map<std::int64_t, std::int64_t> running_;         // number -> rows that still run
  std::optional<std::pair<Job, std::int64_t>> chunked_;  // and its tokens that have run
  bool owes_step_ = false;
  std::optional<double> since_;  // when the first that waits could have come in
};

}  // namespace skipdec::runtime
