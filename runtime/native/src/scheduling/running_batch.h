// RunningBatch: requests that arrive at any time and run together.
#pragma once

#include <skipdec/skipdec.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "constants.h"
#include "requests/sequence.h"
#include "scheduling/decoding.h"
#include "scheduling/drafting/draft_config.h"
#include "scheduling/drafting/ngrams/ngram_table.h"
#include "scheduling/scheduler.h"
#include "stitching/slot_stitcher.h"

namespace skipdec::runtime {

// Who may use the kept prefixes of a prompt: nobody, all clients, or only the same client.
enum class PrefixSharing { kOff, kShared, kClient };

struct RunningBatchConfig {
  std::int64_t max_batch_size = constants::kDefaultMaxBatchSize;  // rows at once
  std::int64_t max_model_len = 0;  // positions of a request; 0: as many as the bundle has
  std::int64_t kv_memory = 0;      // bytes
  std::int64_t max_prefill_tokens = constants::kDefaultMaxPrefillTokens;
  std::string admission;
  PrefixSharing prefix_cache = PrefixSharing::kShared;
  std::optional<DraftConfig> draft;          // empty: one token per pass
  std::shared_ptr<const KnownNGrams> known;  // initial n-grams of own drafts, or nullptr
};

using EngineStats = skipdec_stats;  // ``size`` is only for the C interface

struct ScoreResult {
  std::vector<double> logprobs;
  std::vector<std::int64_t> layers;
};

// A request gets the same tokens as when it runs alone (up to rounding if products are float32).
// Its KV memory is reserved on admission, so that no running row is ever preempted. If a row's own
// computation fails (NaN logits), that row ends with "error". If a call of an engine fails, all
// running rows do, and waiting requests continue; the third consecutive failure makes `step` throw.
//
// For one thread unless a method says otherwise.
class RunningBatch {
 public:
  // Throws Error (kUsage) for a configuration that the bundle does not allow.
  static void check(const Manifest& manifest, const RunningBatchConfig& config);

  // All arguments must outlive the batch. ``tokenizer`` is nullptr if the bundle has none.
  // ``decoding`` is nullptr for the decoding that ``config.draft`` selects. Throws Error (kUsage)
  // for a configuration that is not allowed.
  RunningBatch(const Manifest& manifest, const Engines& engines, const Tokenizer* tokenizer,
               const RunningBatchConfig& config, std::unique_ptr<Decoding> decoding = nullptr);

  // Throws Error (kCapacity) if the request could not run even alone. Any thread may call it.
  void require_possible(const Request& request) const;
  void require_possible(const ScoreRequest& request) const;

  // Throws Error (kCapacity) if not even the shortest request fits the KV memory.
  void require_room(const SchedulePointer& schedule) const;

  // Queues a request that `require_possible` accepted; its deltas carry ``number``, which ascends.
  // If this throws, e.g. for lack of memory, the request has failed and the batch is unchanged.
  void add(std::int64_t number, Request request, double start);
  bool is_busy() const { return scheduler_.is_busy(); }
  // While false, waiting requests keep waiting and running ones continue.
  void set_admits(bool admits) { admits_ = admits; }
  // Runs prompts, a chunk of a prompt, or a step, as the scheduler decides. Returns the deltas,
  // valid until the next call; none if nothing can run now. Throws the engines' error at the third
  // consecutive failure.
  const std::vector<Delta>& step(double now);
  // Ends a request as cancelled and frees its slots; ignores an unknown one.
  const std::vector<Delta>& abort(std::int64_t number, const std::string& reason);
  // Ends a request as failed for a reason outside the batch, e.g. its caller's callback.
  const std::vector<Delta>& fail(std::int64_t number, const std::string& reason);
  // Undoes the row's last token, or whatever ``delta`` of its last pass reports, before `abort` or
  // `fail` ends the request.
  void undo(const Delta& delta);
  bool has_ended(std::int64_t number) const;
  // Returns the completions of a request that has ended, and forgets it.
  std::vector<Completion> take(std::int64_t number);

  // Returns true if the memory for a text is free now; `score` then runs it between two steps.
  bool fits(const ScoreRequest& request) const;
  // Counts the text even if an engine fails or logits are not finite, which throws Error (kEngine).
  ScoreResult score(const ScoreRequest& request);

  // Any thread may call it.
  EngineStats stats() const;

 private:
  struct Running {
    std::int64_t number = 0;
    Request request;
    PromptRow prompt;
    std::vector<Sequence> sequences;  // row prompt.row + output
    std::int64_t rows_left = 0;       // rows that have not ended
    bool has_ended() const;
    RunningRow row(std::size_t output);
  };
  void queue(std::int64_t number, Request request, double start);
  PromptRow prompt_row(const Request& request, SlotCache::Row first) const;
  bool fits(const std::vector<Job>& jobs);
  bool runs_in_chunks(const PromptRow& row);
  void run(const Prefill& action);
  void run(const Chunk& action);
  void run(const Decode& action);
  static void run(const Wait& /*action*/) {}
  void begin(const std::vector<Running*>& requests, const Logits& logits);
  void begin(const RunningRow& row, const float* logits, std::int64_t layers);
  void accept(const RunningRow& row, const StepRow& fed, const float* const* logits);
  void remove_ended();
  void count_end(const Running& running, std::int64_t by);
  using EndOne = void (Sequence::*)(const std::string& reason, Delta& delta);
  bool end(std::int64_t number, const std::string& reason, EndOne end_one);
  void fail_all(const std::string& reason, const Action& action);
  Delta& new_delta(const RunningRow& row);
  ScoreResult scored(const ScoreRequest& request);
  void publish();

  const ModelSpec& model_;
  const Tokenizer* tokenizer_;
  RunningBatchConfig config_;
  SlotStitcher stitcher_;
  std::unique_ptr<Decoding> decoding_;
  Scheduler scheduler_;
  std::map<std::int64_t, std::unique_ptr<Running>> requests_;
  std::vector<RunningRow> rows_;  // in order of admission
  std::vector<StepRow> steps_;    // in the same order
  std::vector<Delta> deltas_;     // made by the last call
  SlotCache::Row next_row_ = 0;
  bool admits_ = true;
  int failures_in_a_row_ = 0;
  EngineStats counters_{};  // used by the batch's thread only
  mutable std::mutex mutex_;
  EngineStats published_{};  // guarded by mutex_
};

}  // namespace skipdec::runtime
