// The part of RunningBatch that scores given texts between two steps.
#include "errors.h"
#include "scheduling/clock.h"
#include "scheduling/running_batch.h"
#include "texts.h"

namespace skipdec::runtime {

void RunningBatch::require_possible(const ScoreRequest& request) const {
  const std::int64_t tokens = request.num_fed() + 1;
  if (tokens > model_.max_seq_len) {
    throw Error(Status::kUsage, "score",
                "prompt and its continuation have " + std::to_string(tokens) +
                    " tokens; the bundle holds " + std::to_string(model_.max_seq_len) +
                    " positions");
  }
  const Limits& limits = stitcher_.limits();
  if (tokens > limits.max_positions) {
    throw Error(Status::kCapacity, "prompt",
                "the text to score has " + grouped(tokens) + " positions; max_model_len allows " +
                    grouped(limits.max_positions) + "; raise it or shorten the text");
  }
  const std::int64_t needed = stitcher_.score_bytes(request.num_fed());
  if (needed > limits.kv_bytes) {
    throw Error(Status::kCapacity, "score",
                std::to_string(tokens) + " tokens need " + grouped(needed) +
                    " bytes of KV cache; kv_memory allows " + grouped(limits.kv_bytes) +
                    "; raise it or shorten the text");
  }
}

bool RunningBatch::fits(const ScoreRequest& request) const {
  return stitcher_.fits_score(request.num_fed());
}

ScoreResult RunningBatch::score(const ScoreRequest& request) {
  const double start = seconds_now();
  const auto count = [&](std::int64_t& outcome) {
    ++outcome;
    counters_.scoring_seconds += seconds_now() - start;
    publish();
  };
  ++counters_.submitted;
  try {
    ScoreResult result = scored(request);
    counters_.prompt_tokens += request.num_fed();
    count(counters_.finished);
    return result;
  } catch (...) {  // a failed text took its turn, too
    count(counters_.failed);
    throw;
  }
}

// Runs the engines on a text.
ScoreResult RunningBatch::scored(const ScoreRequest& request) {
  const Schedule& schedule = *request.schedule;
  const TokenSpan fed = request.fed();
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const auto count = static_cast<std::int64_t>(request.continuation.size());
  ScoreResult result;
  result.layers.push_back(schedule.prompt_depth(prompt - 1, prompt));
  for (std::int64_t index = 0; index + 1 < count; ++index) {
    result.layers.push_back(static_cast<std::int64_t>(schedule.plan(index).size()));
  }
  const auto take = [&](const Logits& logits) {
    for (std::int64_t row = 0; row < logits.rows(); ++row) {
      const std::size_t done = result.logprobs.size();
      result.logprobs.push_back(
          chosen_logprob(logits.row(row), model_.vocab_size, request.continuation[done],
                         "logits of the continuation's token " + std::to_string(done)));
    }
  };
  stitcher_.score(fed, schedule.active_lengths(prompt, count - 1), prompt - 1, count, take);
  return result;
}

}  // namespace skipdec::runtime
