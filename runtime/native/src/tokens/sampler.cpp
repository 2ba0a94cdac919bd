#include "tokens/sampler.h"

#include <algorithm>
#include <limits>
#include <string>

namespace skipdec::runtime {
namespace {

std::optional<Philox> random_stream(const SamplingParams& params, std::int64_t output_index) {
  if (params.greedy()) return std::nullopt;
  if (!params.seed) return Philox::of_entropy();
  return Philox({*params.seed, static_cast<std::uint64_t>(output_index)});
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, const std::vector<std::int64_t>& prompt,
                 std::int64_t vocab_size, std::int64_t output_index,
                 const std::vector<std::int64_t>& end_token_ids)
    : vocab_size_(vocab_size),
      min_tokens_(params.min_tokens),
      logprobs_(params.logprobs),
      drawer_(params),
      random_(random_stream(params, output_index)) {
  if (Penalties::needed_by(params)) penalties_.emplace(params, prompt);
  if (min_tokens_ > 0) ending_token_ids_ = params.ending_token_ids(end_token_ids);
}

SampledToken Sampler::sample(const float* logits) {
  const float* const adjusted = adjust(logits, vocab_size_, 0);
  SampledToken token;
  token.token_id = drawer_.draw(adjusted, vocab_size_, random_ ? random_->next_number() : 0.0);
  if (token.token_id < 0) throw not_finite(logits, vocab_size_, subject());
  if (logprobs_) {
    token.logprobs = row_logprobs(logits, vocab_size_, token.token_id, *logprobs_, subject());
  }
  ++num_sampled_;
  if (penalties_) penalties_->add(token.token_id);
  return token;
}

std::int64_t Sampler::propose(const float* logits, std::int64_t size, std::int64_t ahead) const {
  const float* const adjusted = adjust(logits, size, ahead);
  return std::max<std::int64_t>(0, drawer_.draw(adjusted, size, number(ahead)));
}

std::int64_t Sampler::propose(const float* logits, const std::vector<std::int64_t>& token_ids,
                              std::int64_t ahead) const {
  if (!adjusts(ahead)) {
    const auto size = static_cast<std::int64_t>(token_ids.size());
    const std::int64_t index = drawer_.draw(logits, size, number(ahead), token_ids.data());
    return token_ids[static_cast<std::size_t>(std::max<std::int64_t>(0, index))];
  }
  static thread_local std::vector<float> whole;
  whole.assign(static_cast<std::size_t>(vocab_size_), -std::numeric_limits<float>::infinity());
  for (std::size_t index = 0; index < token_ids.size(); ++index) {
    whole[static_cast<std::size_t>(token_ids[index])] = logits[index];
  }
  return propose(whole.data(), vocab_size_, ahead);
}

// Returns the random number of the token ``ahead`` tokens from now; 0 if greedy.
double Sampler::number(std::int64_t ahead) const {
  double number = 0;
  if (!random_) return number;
  Philox random = *random_;  // a copy draws the same numbers
  for (std::int64_t drawn = 0; drawn <= ahead; ++drawn) number = random.next_number();
  return number;
}

// Returns ``logits`` [size] of the token ``ahead`` tokens from now, after the penalties and masks
// that can change the greedy choice; copies them only if needed.
const float* Sampler::adjust(const float* logits, std::int64_t size, std::int64_t ahead) const {
  if (!adjusts(ahead)) return logits;
  static thread_local std::vector<float> adjusted;
  adjusted.assign(logits, logits + size);
  if (penalties_) penalties_->apply(adjusted.data(), size);
  if (is_masked(ahead)) {
    for (const std::int64_t token_id : ending_token_ids_) {
      if (token_id >= size) continue;
      adjusted[static_cast<std::size_t>(token_id)] = -std::numeric_limits<float>::infinity();
    }
  }
  return adjusted.data();
}

std::string Sampler::subject() const {
  return "logits of output token " + std::to_string(num_sampled_);
}

}  // namespace skipdec::runtime
