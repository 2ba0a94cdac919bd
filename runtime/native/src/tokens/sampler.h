// One token from one row of logits, with a random stream of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tokens/logprobs.h"
#include "tokens/sampling_params.h"

namespace skipdec::runtime {

struct SampledToken {
  std::int64_t token_id = 0;
  std::vector<Logprob> logprobs;  // if asked for: the chosen one first, then the best by rank
};

// Chooses the tokens of one running sequence: penalties, min_tokens mask, temperature, min_p,
// top_k, top_p, softmax, draw; see docs/bundle-format.md for the arithmetic and the random stream.
class Sampler {
 public:
  // ``params`` and ``prompt`` were checked: their token ids are below ``vocab_size``. ``prompt``
  // matters to the repetition penalty only. Throws Error (kEnvironment) if there is no entropy for
  // a stream without a seed, or SKIPDEC_INSTRUCTION_SET names what can't run here.
  Sampler(const SamplingParams& params, const std::vector<std::int64_t>& prompt,
          std::int64_t vocab_size, std::int64_t output_index,
          std::optional<std::int64_t> eos_token_id);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  // The next token from ``logits`` [vocab_size], left unchanged. Allocates nothing but counts of
  // penalties and log-probabilities: other memory is that of the thread. Throws Error (kEngine) if
  // a logit that is not masked is NaN or +infinity, or none is finite; of log-probabilities, if
  // any is.
  SampledToken sample(const float* logits);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace skipdec::runtime
