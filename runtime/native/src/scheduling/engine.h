// Engine: requests come at any time and run together, each as if it were alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "scheduling/decoding.h"
#include "scheduling/scheduler.h"
#include "scheduling/sequence.h"
#include "stitching/slot_stitcher.h"

namespace skipdec::runtime {

// Who finds the beginnings of prompts that are kept: all clients, or each its own only.
enum class PrefixSharing { kOff, kShared, kClient };

struct EngineConfig {
  std::int64_t max_batch_size = 8;  // rows at once
  std::int64_t max_model_len = 0;   // positions of a request; 0: as many as the bundle holds
  std::int64_t kv_memory = 0;       // bytes
  std::int64_t max_prefill_tokens = 2048;
  std::string admission;
  PrefixSharing prefix_cache = PrefixSharing::kShared;
};

// What an engine has done so far; see skipdec_stats.
struct EngineStats {
  std::int64_t running = 0, waiting = 0;
  std::int64_t submitted = 0, finished = 0, aborted = 0, failed = 0;
  std::int64_t reserved_bytes = 0, prefix_bytes = 0, limit_bytes = 0;
  std::int64_t prompt_tokens = 0, prefix_tokens = 0, generated_tokens = 0;
  std::int64_t steps = 0, step_rows = 0, layer_calls = 0, layer_rows = 0;
  double prefill_seconds = 0, decode_seconds = 0, sampling_seconds = 0, scoring_seconds = 0;
};

struct ScoreResult {
  std::vector<double> logprobs;
  std::vector<std::int64_t> layers;
};

// A request's tokens are those that it has alone, whatever runs beside it (rounding aside where
// products are float32). What it needs of KV memory is reserved when it is let in, so that nothing
// that runs is ever put off. If a row's own computation fails (NaN logits), that row ends with
// "error"; if an engine fails, all rows that run do, and those that wait go on; at the third time
// in a row `step` throws.
//
// One thread, but where it is said.
class Engine {
 public:
  // All that is given outlives the engine. ``tokenizer``: nullptr where the bundle has none.
  // ``decoding``: nullptr for ordinary decoding. Throws Error (kUsage) for a configuration that is
  // not allowed.
  Engine(const Manifest& manifest, const Engines& engines, const Tokenizer* tokenizer,
         const EngineConfig& config, std::unique_ptr<Decoding> decoding = nullptr);

  // Throws Error (kCapacity) if the request could not run even alone. Any thread.
  void require_possible(const Request& request) const;
  void require_possible(const ScoreRequest& request) const;

  // Lets a request wait that `require_possible` let pass; its deltas carry ``number``, which
  // ascends.
  void add(std::int64_t number, Request request, double start);
  bool is_busy() const { return scheduler_.is_busy(); }
  // Does what is next: prompts, a part of one, or a step; empty if nothing can be done now. What is
  // returned lives until the next call. Throws what an engine throws at the third call in a row.
  const std::vector<Delta>& step(double now);
  // How long `step` has nothing to do unless something comes; of the last call that was empty.
  std::optional<double> wait_until() const { return wait_until_; }
  // Ends a request as cancelled; its slots are free at once. Nothing happens to one that is
  // unknown.
  const std::vector<Delta>& abort(std::int64_t number, const std::string& reason);
  // The same of a request that failed by no fault of the engine's, e.g. in its caller's callback.
  const std::vector<Delta>& fail(std::int64_t number, const std::string& reason);
  bool has_ended(std::int64_t number) const;
  // The completions of a request that has ended, which the engine then forgets.
  std::vector<Completion> take(std::int64_t number);

  // Whether the memory for a text is free now, and its log-probabilities; between two steps.
  bool fits(const ScoreRequest& request) const;
  ScoreResult score(const ScoreRequest& request);

  // Any thread.
  EngineStats stats() const;

 private:
  struct Running {
    std::int64_t number = 0;
    Request request;
    PromptRow prompt;
    std::vector<Sequence> sequences;  // row prompt.row + place
    std::int64_t rows_left = 0;       // that have not ended
    bool has_ended() const;
    RunningRow row(std::size_t place);
  };
  static PromptRow prompt_row(const Request& request, SlotCache::Row first);
  bool fits(const std::vector<Job>& jobs) const;
  void run(const Prefill& action);
  void run(const Chunk& action);
  void run(const Decode& action);
  void run(const Wait& action) { wait_until_ = action.until; }
  void begin(const std::vector<Running*>& requests, const Logits& logits);
  void begin(const RunningRow& row, const float* logits, std::int64_t layers);
  void accept(const RunningRow& row, const StepRow& fed, const float* const* logits);
  void remove_ended();
  using EndOne = void (Sequence::*)(const std::string& reason, Delta& delta);
  bool end(std::int64_t number, const std::string& reason, EndOne end_one);
  void fail_all(const std::string& reason, const Action& action);
  Delta& new_delta(const RunningRow& row);
  void publish();

  const ModelSpec& model_;
  const Tokenizer* tokenizer_;
  EngineConfig config_;
  std::unique_ptr<Decoding> decoding_;
  SlotStitcher stitcher_;
  Scheduler scheduler_;
  std::map<std::int64_t, std::unique_ptr<Running>> requests_;
  std::vector<RunningRow> rows_;  // in order of admission
  std::vector<StepRow> steps_;    // of the same order
  std::vector<Delta> deltas_;     // of the last call
  SlotCache::Row next_row_ = 0;
  std::optional<std::int64_t> in_chunks_;  // the request whose prompt last ran in chunks
  std::optional<double> wait_until_;
  int failures_in_a_row_ = 0;
  EngineStats counters_;  // the engine's own
  mutable std::mutex mutex_;
  EngineStats published_;  // guarded by mutex_
};

}  // namespace skipdec::runtime
