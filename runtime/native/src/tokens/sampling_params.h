// How tokens are chosen and when a completion ends, with vLLM's field names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace skipdec::runtime {

// Log-probabilities that one request may ask for, over all tokens of all its completions. What it
// asks for is known with its prompt: the request's check, not that of its parameters.
inline constexpr std::int64_t kMaxLogprobs = std::int64_t{1} << 20;

// The rules and limits of skipdec's Python SamplingParams.
struct SamplingParams {
  std::int64_t max_tokens = 16;  // 0: as many as the bundle's positions allow
  double temperature = 1.0;      // 0 to 1e6; below 1e-5 the most probable token is taken
  std::int64_t top_k = 0;        // 0 and -1: off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<std::uint64_t> seed;  // none: fresh entropy
  std::int64_t n = 1;
  std::int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::optional<std::int64_t> logprobs;  // most probable tokens reported beside the chosen one

  bool greedy() const { return temperature < 1e-5; }

  // Throws Error (kUsage), all problems in one message: each field, those that contradict each
  // other, and tokens that a vocabulary of ``vocab_size`` doesn't have.
  void check(std::int64_t vocab_size, std::optional<std::int64_t> eos_token_id) const;

  // Ascending, each once: the tokens that end a completion.
  std::vector<std::int64_t> ending_token_ids(std::optional<std::int64_t> eos_token_id) const;
};

}  // namespace skipdec::runtime
