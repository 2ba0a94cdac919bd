// Requests, checked completely before any work starts.
#pragma once

#include <cstdint>
#include <string>

#include "schedule/schedule.h"
#include "stitching/prompts.h"
#include "tokens/sampling_params.h"

namespace skipdec::runtime {

// A prompt and how to continue it. ``max_tokens`` is resolved and never 0. ``client`` names the
// client: clients take turns, and each may have a prefix cache of its own. ``drafts`` false
// switches the engine's drafts off for this request.
struct Request {
  TokenSpan prompt;
  SamplingParams params;
  std::int64_t max_tokens = 0;
  SchedulePointer schedule;
  std::string client;
  bool drafts = true;
};

// Throws Error (kUsage) for an empty list, or a token id outside the vocabulary.
void require_token_ids(const std::string& subject, const TokenSpan& tokens,
                       std::int64_t vocab_size);

// Throws Error (kUsage) for more tokens than positions, before they are copied.
void require_token_count(const std::string& subject, std::size_t count, std::int64_t max_seq_len);

// Returns how many tokens a completion of ``prompt`` may have: params.max_tokens, or as many as
// ``max_model_len`` positions leave, at least one. Throws Error (kUsage) like `require_token_ids`,
// if there is no room for params.max_tokens, and for too many log-probabilities.
std::int64_t resolve_max_tokens(const TokenSpan& prompt, const SamplingParams& params,
                                const ModelSpec& model, std::int64_t max_model_len);

// A prompt and a continuation to score.
struct ScoreRequest {
  TokenSpan prompt, continuation;
  SchedulePointer schedule;

  // The tokens that engines read: all but the continuation's last.
  TokenSpan fed() const;
  std::int64_t num_fed() const {
    return static_cast<std::int64_t>(prompt.size() + continuation.size()) - 1;
  }
};

}  // namespace skipdec::runtime
