// An opened bundle and the thread that runs its requests.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "constants.h"
#include "errors.h"
#include "scheduling/scoring_turns.h"
#include "service/ticket.h"

namespace skipdec::runtime {

struct ServiceOptions {
  std::string schedule;  // default of all requests; empty: the bundle's own
  std::string draft;     // see DraftConfig, or "auto"; empty: none. `open` sets ``batch.draft``.
  bool raw_prompts = false;
  Verify verify = Verify::kFull;
  std::int64_t max_waiting = constants::kDefaultMaxWaiting;
  SessionOptions sessions;
  RunningBatchConfig batch;  // kv_memory 0: default_kv_memory()
};

// A text that a chat template has rendered, which includes its special tokens.
struct RenderedChat {
  std::string text;
};

// A text, token ids, or a rendered chat.
using Prompt = std::variant<std::string, TokenSpan, RenderedChat>;

// Any number of threads submit requests; one thread runs a `RunningBatch`. Functions throw Error,
// with kUsage in a fork of the process that opened the bundle, because threads do not survive a
// fork.
class Service {
 public:
  // Throws Error: kBundle, kEnvironment, kUsage, kSchedule, kCapacity.
  static std::shared_ptr<Service> open(const std::string& path, const ServiceOptions& options);

  // Loads the bundle's engines with ``backend`` and starts the thread. `open` provides the
  // arguments; ``schedule`` is that of the options. Throws Error (kCapacity) if no request fits
  // ``kv_memory``.
  Service(std::shared_ptr<const Bundle> bundle, std::shared_ptr<Backend> backend,
          ServiceOptions options, SchedulePointer schedule = nullptr);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Checks requests and queues them; they are admitted together as far as they fit. If this throws,
  // none is queued. ``schedule``: empty for the default. ``deadline``: seconds from now, negative
  // if it has passed, 0 for none. ``on_delta`` receives the deltas of all requests, unless it is
  // empty. ``client``, ``drafts``: see Request. Throws kUsage, kSchedule, kCapacity, kBusy,
  // kClosed.
  std::vector<std::shared_ptr<Ticket>> submit_many(
      const std::vector<Prompt>& prompts, const SamplingParams& params, const std::string& schedule,
      double deadline, const OnDelta& on_delta, const std::string& client = {}, bool drafts = true);
  // Throws Error (kUsage) for more requests than may ever wait at once.
  void require_may_wait(std::size_t count) const;
  // Cancels a request before the next step.
  void cancel(std::int64_t number);
  // Returns the log-probabilities of a continuation, scored between two steps. ``scored`` receives
  // the continuation's tokens. Not allowed in a callback.
  ScoreResult score(const Prompt& prompt, const Prompt& continuation, const std::string& schedule,
                    TokenSpan& scored);
  // Refuses new requests and waits up to ``timeout`` seconds (negative: without limit) until all
  // have ended; returns true if they have. Not allowed in a callback.
  bool drain(double timeout);
  // Waits for the running step and ends all requests; idempotent. Not allowed in a callback.
  void close();
  // Returns true in a fork of the process that opened the bundle, where nothing can be closed.
  bool is_inherited() const;

  const Manifest& manifest() const { return bundle_->manifest(); }
  const std::string& default_schedule() const { return default_schedule_->text(); }  // in full
  const std::string& description() const { return description_; }
  const std::string& no_tokenizer() const {
    return no_tokenizer_;
  }  // the reason; empty if there is a tokenizer
  std::string draft() const;  // in full; empty without drafts
  std::string warning() const;
  std::int64_t max_model_len() const;
  EngineStats stats() const;
  // Throws Error (kUsage) if the bundle has no tokenizer that the library supports.
  const Tokenizer& tokenizer() const;

 private:
  struct Arrival {
    std::shared_ptr<Ticket> ticket;
    Request request;
    double start = 0;
  };
  struct Score {
    ScoreRequest request;
    std::promise<ScoreResult> result;
  };

  Arrival arrival(const Prompt& prompt, const SamplingParams& params, const std::string& schedule,
                  double deadline) const;
  void require_usable() const;
  void require_outside_callback(const char* what) const;
  TokenSpan token_ids(const Prompt& prompt, bool is_prompt) const;
  SchedulePointer resolve(const std::string& schedule, std::int64_t max_tokens) const;
  std::string untuned_warning() const;
  void load_tokenizer();
  void run();
  std::vector<Delta> step();
  bool take_in();
  void add(Arrival arrival);
  void end_refused(Ticket& ticket, const std::string& reason);
  void count_ended(std::int64_t count);
  void end_late();
  void score_next();
  void post(const std::vector<Delta>& deltas);
  void end_all(const std::optional<std::string>& failure);
  static void end(Ticket& ticket, const Error& reason);

  std::shared_ptr<const Bundle> bundle_;
  ServiceOptions options_;
  pid_t process_;
  // Resolved for one token; if it is from a file, which may change, all requests have it.
  SchedulePointer default_schedule_;
  std::string description_, no_tokenizer_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<Backend> backend_;
  Engines engines_;
  std::unique_ptr<RunningBatch> batch_;

  // Used by the engine's thread only.
  std::map<std::int64_t, std::shared_ptr<Ticket>> open_;  // requests that have not ended
  std::list<Score> scores_;
  ScoringTurns turns_;

  mutable std::mutex mutex_;  // guards the following members
  std::condition_variable changed_;
  std::list<Arrival> arrivals_;
  std::deque<std::int64_t> cancellations_;
  std::list<Score> new_scores_;
  std::int64_t next_number_ = 0;
  std::int64_t num_open_ = 0;  // requests and texts that have not ended
  bool is_stopping_ = false;
  std::optional<Error> refusal_;  // thrown for new requests

  std::mutex closing_;  // one thread closes, and others wait for it
  std::thread thread_;
  const std::shared_ptr<EngineThread> engine_thread_ = std::make_shared<EngineThread>();
};

}  // namespace skipdec::runtime
