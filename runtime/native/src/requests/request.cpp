#include "requests/request.h"

#include <algorithm>

#include "errors.h"
#include "texts.h"

namespace skipdec::runtime {

void require_token_ids(const std::string& subject, const TokenSpan& tokens,
                       std::int64_t vocab_size) {
  if (tokens.empty()) throw Error(Status::kUsage, subject, "has no tokens; give at least one");
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](std::int64_t id) { return id < 0 || id >= vocab_size; });
  if (bad == tokens.end()) return;
  throw Error(Status::kUsage, subject,
              "has token id " + std::to_string(*bad) + " at " +
                  std::to_string(bad - tokens.begin()) + "; allowed: 0 to " +
                  std::to_string(vocab_size - 1));
}

void require_token_count(const std::string& subject, std::size_t count, std::int64_t max_seq_len) {
  if (count <= static_cast<std::size_t>(max_seq_len)) return;
  throw Error(Status::kUsage, subject,
              "has " + std::to_string(count) + " tokens; the bundle holds " +
                  std::to_string(max_seq_len) + " positions; shorten it");
}

std::int64_t resolve_max_tokens(const TokenSpan& prompt, const SamplingParams& params,
                                const ModelSpec& model, std::int64_t max_model_len) {
  require_token_ids("prompt", prompt, model.vocab_size);
  const std::int64_t max_seq_len = model.max_seq_len;
  const auto length = static_cast<std::int64_t>(prompt.size());
  const std::int64_t room = max_seq_len - length;
  if (room < 1 || params.max_tokens > room) {
    const std::string seen = room < 1 ? "leaves no room for a completion"
                                      : "max_tokens is " + std::to_string(params.max_tokens);
    const std::string limit = max_model_len < max_seq_len
                                  ? "max_model_len allows " + std::to_string(max_model_len)
                                  : "the bundle holds " + std::to_string(max_seq_len);
    throw Error(Status::kUsage, "prompt",
                "has " + std::to_string(length) + " tokens and " + seen + "; " + limit +
                    " positions; shorten the prompt" + (room < 1 ? "" : " or lower max_tokens"));
  }
  const std::int64_t most = std::clamp<std::int64_t>(max_model_len - length, 1, room);
  const std::int64_t max_tokens = params.max_tokens > 0 ? params.max_tokens : most;
  const std::int64_t logprobs = params.logprobs.value_or(0);
  const std::int64_t entries =
      logprobs + 1;  // per token, with its own; up to 2^24, like the others
  if (params.logprobs && params.n * max_tokens > kMaxLogprobs / entries) {
    throw Error(Status::kUsage, "prompt",
                "n " + std::to_string(params.n) + ", max_tokens " + std::to_string(max_tokens) +
                    " and logprobs " + std::to_string(logprobs) + " are " +
                    grouped(params.n * max_tokens * entries) + " log-probabilities; allowed: " +
                    grouped(kMaxLogprobs) + "; lower one of them");
  }
  return max_tokens;
}

TokenSpan ScoreRequest::fed() const {
  TokenSpan tokens = prompt;
  tokens.insert(tokens.end(), continuation.begin(), continuation.end() - 1);
  return tokens;
}

}  // namespace skipdec::runtime
