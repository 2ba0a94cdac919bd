// The part of RunningBatch that decides whether requests fit, alone or beside the running ones.
#include <algorithm>

#include "errors.h"
#include "scheduling/running_batch.h"
#include "texts.h"

namespace skipdec::runtime {

void RunningBatch::require_possible(const Request& request) const {
  if (request.params.n > config_.max_batch_size) {
    throw Error(Status::kCapacity, "n",
                "is " + std::to_string(request.params.n) + "; the engine runs up to " +
                    std::to_string(config_.max_batch_size) +
                    " rows at once; lower n or raise max_batch_size");
  }
  const auto tokens = static_cast<std::int64_t>(request.prompt.size());
  const std::string lengths =
      std::to_string(tokens) + " tokens and max_tokens " + std::to_string(request.max_tokens);
  const Limits& limits = stitcher_.limits();
  if (tokens + request.max_tokens > limits.max_positions) {
    throw Error(Status::kCapacity, "prompt",
                lengths + " are " + grouped(tokens + request.max_tokens) +
                    " positions; max_model_len allows " + grouped(limits.max_positions) +
                    "; raise it, " +
                    (request.max_tokens > 1 ? "shorten the prompt or lower max_tokens"
                                            : "or shorten the prompt"));
  }
  const PromptRow prompt = prompt_row(request, 0);
  const std::int64_t needed = stitcher_.bytes_alone(prompt, tokens > config_.max_prefill_tokens);
  if (needed > limits.kv_bytes) {
    throw Error(Status::kCapacity, "prompt",
                lengths + " need " + grouped(needed) + " bytes of KV cache; kv_memory allows " +
                    grouped(limits.kv_bytes) +
                    "; raise it, shorten the prompt, lower max_tokens or use a schedule with fewer "
                    "layers");
  }
}

void RunningBatch::require_room(const SchedulePointer& schedule) const {
  const Limits& limits = stitcher_.limits();
  const auto needed = [&](std::int64_t max_tokens) {
    Request request;
    request.prompt = {0};
    request.max_tokens = max_tokens;
    request.schedule = schedule;
    return stitcher_.bytes_alone(prompt_row(request, 0), false);
  };
  const std::int64_t most = limits.max_positions, least = needed(1);
  if (least <= limits.kv_bytes) return;
  throw Error(Status::kCapacity, "kv_memory",
              "is " + grouped(limits.kv_bytes) +
                  " bytes for this bundle; allowed: " + grouped(least) +
                  " or more, for the shortest request; one of all " + grouped(most) +
                  " positions needs " + grouped(needed(std::max<std::int64_t>(1, most - 1))));
}

// Returns the row of a request's prompt, with its copies and their reservation.
PromptRow RunningBatch::prompt_row(const Request& request, SlotCache::Row first) const {
  PromptRow row;
  row.row = first;
  row.tokens = request.prompt;
  row.schedule = request.schedule;
  row.reservation =
      reservation_of(*request.schedule, static_cast<std::int64_t>(request.prompt.size()),
                     request.max_tokens, stitcher_.has_draft_layer());
  for (std::int64_t copy = 1; copy < request.params.n; ++copy) row.copies.push_back(first + copy);
  return row;
}

bool RunningBatch::fits(const std::vector<Job>& jobs) {
  if (!admits_) return false;
  std::vector<const PromptRow*> rows;
  rows.reserve(jobs.size());
  for (const Job& job : jobs) rows.push_back(&requests_.at(job.number)->prompt);
  const PromptRow& first = *rows.front();
  return runs_in_chunks(first) ? stitcher_.fits_in_chunks(first) : stitcher_.fits(rows);
}

bool RunningBatch::runs_in_chunks(const PromptRow& row) {
  const auto length = static_cast<std::int64_t>(row.tokens.size());
  return length > config_.max_prefill_tokens || stitcher_.keeps_prefix(row);
}

}  // namespace skipdec::runtime
