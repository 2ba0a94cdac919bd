// One token from one row of logits, with a random stream of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tokens/sampling_params.h"

namespace skipdec::runtime {

// Under the raw distribution: no penalty, mask or temperature.
struct Logprob {
  std::int64_t token_id = 0;
  double logprob = 0;
  std::int64_t rank = 0;  // 1 is the most probable token
};

struct SampledToken {
  std::int64_t token_id = 0;
  std::vector<Logprob> logprobs;  // if asked for: the chosen one first, then the best by rank
};

// Chooses the tokens of one running sequence: penalties, min_tokens mask, temperature, min_p,
// top_k, top_p, softmax, draw; see docs/bundle-format.md for the arithmetic and the random stream.
class Sampler {
 public:
  // ``params`` were checked. ``prompt`` matters to the repetition penalty only.
  Sampler(const SamplingParams& params, const std::vector<std::int64_t>& prompt,
          std::int64_t vocab_size, std::int64_t output_index,
          std::optional<std::int64_t> eos_token_id);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  // The next token from ``logits`` [vocab_size], left unchanged. Allocates nothing unless
  // penalties, a mask or log-probabilities ask for it. Throws Error (kEngine) if a logit is NaN or
  // +infinity, or none is finite.
  SampledToken sample(const float* logits);

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Of ``logits`` [size], finite or -infinity: ``token_id`` first, then the ``count`` best.
std::vector<Logprob> row_logprobs(const float* logits, std::int64_t size, std::int64_t token_id,
                                  std::int64_t count);

// Log-softmax of ``logits`` [size] at ``token_id``, in the arithmetic of Python's
// runtime/batches/scoring.py. Throws Error (kEngine) as `Sampler::sample` does; ``subject`` names
// the row.
double chosen_logprob(const float* logits, std::int64_t size, std::int64_t token_id,
                      const std::string& subject);

}  // namespace skipdec::runtime
