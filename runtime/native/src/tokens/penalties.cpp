#include "tokens/penalties.h"

namespace skipdec::runtime {

Penalties::Penalties(const SamplingParams& params, const std::vector<std::int64_t>& prompt)
    : repetition_(static_cast<float>(params.repetition_penalty)),
      frequency_(static_cast<float>(params.frequency_penalty)),
      presence_(static_cast<float>(params.presence_penalty)) {
  if (params.repetition_penalty == 1) return;
  for (const std::int64_t token_id : prompt) seen(token_id);
}

bool Penalties::needed_by(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

void Penalties::add(std::int64_t token_id) { seen(token_id).count += 1; }

// Each step rounds to float32, as numpy's do.
void Penalties::apply(float* logits, std::int64_t size) const {
  for (const Seen& token : seen_) {
    if (token.token_id >= size) continue;
    float& logit = logits[token.token_id];
    logit = logit > 0 ? logit / repetition_ : logit * repetition_;
    logit -= frequency_ * token.count;
    logit -= token.count > 0 ? presence_ : 0.0F;
  }
}

Penalties::Seen& Penalties::seen(std::int64_t token_id) {
  const auto [found, is_new] = places_.try_emplace(token_id, seen_.size());
  if (is_new) seen_.push_back({token_id, 0.0F});
  return seen_[found->second];
}

}  // namespace skipdec::runtime
