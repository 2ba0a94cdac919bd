// Samples tokens from rows of logits with one random stream per completion.
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
  std::vector<Logprob> logprobs;  // if requested: chosen one first, then the best by rank
};

// Chooses the tokens of one running sequence: penalties, min_tokens mask, temperature, min_p,
// top_k, top_p, softmax, draw; see docs/bundle-format.md for the arithmetic and the random stream.
class Sampler {
 public:
  // ``params`` and ``prompt`` must be valid, with token ids below ``vocab_size``. Only the
  // repetition penalty uses ``prompt``. Throws Error (kEnvironment) if there is no entropy for a
  // stream without a seed, or SKIPDEC_INSTRUCTION_SET names a set that cannot run here.
  Sampler(const SamplingParams& params, const std::vector<std::int64_t>& prompt,
          std::int64_t vocab_size, std::int64_t output_index,
          const std::vector<std::int64_t>& end_token_ids);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  // Returns the next token from ``logits`` [vocab_size], which it does not change. Allocates
  // nothing except counts of penalties and log-probabilities; other memory is thread-local. Throws
  // Error (kEngine) if an unmasked logit is NaN or +infinity, or none is finite; for
  // log-probabilities, if any logit is.
  SampledToken sample(const float* logits);
  // Returns the token that `sample` would choose ``ahead`` tokens from now, from ``logits`` [size]
  // of that token, with the same random number and the penalties as they are now. ``size`` may be
  // less than the vocabulary's: then it chooses among its first tokens. Changes nothing; NaN gives
  // any token.
  std::int64_t propose(const float* logits, std::int64_t size, std::int64_t ahead) const;
  // Returns the same from the logits of ``token_ids``, ascending, alone.
  std::int64_t propose(const float* logits, const std::vector<std::int64_t>& token_ids,
                       std::int64_t ahead) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace skipdec::runtime
