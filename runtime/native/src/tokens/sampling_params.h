// The parameters of sampling and stopping, with vLLM's field names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "constants.h"

namespace skipdec::runtime {

// Maximum number of log-probabilities of one request, over all tokens of all its completions. The
// request's check enforces it, not that of the parameters, because it depends on the prompt.
using constants::kMaxLogprobs;

// Has the rules and limits of Python's SamplingParams.
struct SamplingParams {
  std::int64_t max_tokens = constants::kDefaultMaxTokens;  // 0: up to the bundle's last position
  double temperature = 1.0;                                // 0 to 1e6; greedy below 1e-5
  std::int64_t top_k = 0;                                  // 0 and -1: off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<std::uint64_t> seed;  // empty: fresh entropy
  std::int64_t n = 1;
  std::int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::optional<std::int64_t> logprobs;  // most probable tokens to report besides the chosen one

  bool greedy() const { return temperature < 1e-5; }

  // Throws Error (kUsage) with all problems in one message: invalid or contradictory fields, and
  // tokens outside a vocabulary of ``vocab_size``. ``end_token_ids`` are the model's ends of text.
  void check(std::int64_t vocab_size, const std::vector<std::int64_t>& end_token_ids) const;

  // Returns the distinct tokens that end a completion, in ascending order.
  std::vector<std::int64_t> ending_token_ids(const std::vector<std::int64_t>& end_token_ids) const;
};

}  // namespace skipdec::runtime
