// Samples tokens from rows of logits with one random stream per completion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokens/drawing.h"
#include "tokens/logprobs.h"
#include "tokens/penalties.h"
#include "tokens/philox.h"
#include "tokens/sampling_params.h"

namespace skipdec::runtime {

struct SampledToken {
  std::int64_t token_id = 0;
  std::vector<Logprob> logprobs;  // if requested: the chosen one first, then the best by rank
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

  // Returns the next token from ``logits`` [vocab_size], which it does not change. Allocates
  // nothing except counts of penalties and log-probabilities; other memory is thread-local. Throws
  // Error (kEngine) if an unmasked logit is NaN or +infinity, or none is finite; for
  // log-probabilities, if any logit is.
  SampledToken sample(const float* logits);
  // Returns the token that `sample` would choose ``ahead`` tokens from now from ``logits`` [size]
  // of that token, with the same random number and the present penalties. If ``size`` is less than
  // the vocabulary's, it chooses among the first ``size`` tokens. Changes nothing; NaN gives any
  // token.
  std::int64_t propose(const float* logits, std::int64_t size, std::int64_t ahead) const;
  // Returns the same from the logits of only ``token_ids``, which ascend.
  std::int64_t propose(const float* logits, const std::vector<std::int64_t>& token_ids,
                       std::int64_t ahead) const;

 private:
  bool is_masked(std::int64_t ahead) const {
    return num_sampled_ + ahead < min_tokens_ && !ending_token_ids_.empty();
  }
  bool adjusts(std::int64_t ahead) const { return penalties_ || is_masked(ahead); }
  double number(std::int64_t ahead) const;
  const float* adjust(const float* logits, std::int64_t size, std::int64_t ahead) const;
  std::string subject() const;

  std::int64_t vocab_size_, min_tokens_;
  std::optional<std::int64_t> logprobs_;
  Drawer drawer_;
  std::optional<Philox> random_;  // empty: greedy
  std::optional<Penalties> penalties_;
  std::vector<std::int64_t> ending_token_ids_;
  std::int64_t num_sampled_ = 0;
};

}  // namespace skipdec::runtime
