#include "requests/sequence.h"

#include <utility>

namespace skipdec::runtime {

Sequence::Sequence(const Request& request, std::int64_t output_index, const ModelSpec& model,
                   const Tokenizer* tokenizer, double start)
    : index_(output_index),
      start_(start),
      sampler_(request.params, request.prompt, model.vocab_size, output_index, model.end_token_ids),
      stop_checker_(request.params, request.max_tokens, model.end_token_ids, tokenizer) {}

void Sequence::reserve(std::int64_t max_tokens) {
  const auto count = static_cast<std::size_t>(max_tokens);
  completion_.token_ids.reserve(count);
  completion_.layers.reserve(count);
  completion_.token_seconds.reserve(count);
}

void Sequence::accept(const float* logits, std::int64_t layers, double now, Delta& delta) {
  SampledToken token = sampler_.sample(logits);
  completion_.token_ids.push_back(token.token_id);
  completion_.layers.push_back(layers);
  if (!token.logprobs.empty()) {
    completion_.logprobs.insert(completion_.logprobs.end(), token.logprobs.begin(),
                                token.logprobs.end());
    completion_.logprobs_ends.push_back(completion_.logprobs.size());
  }
  completion_.token_seconds.push_back(now - start_);
  delta.has_token = true;
  delta.token_id = token.token_id;
  delta.layers = layers;
  delta.logprobs = std::move(token.logprobs);
  delta.text = stop_checker_.push(token.token_id);
  write(delta);
}

void Sequence::count_pass(std::int64_t drafted, std::int64_t accepted) {
  completion_.drafted += drafted;
  completion_.accepted += accepted;
}

void Sequence::undo(bool has_token) {
  Completion& all = completion_;
  if (has_token) {
    --all.accepted;
    all.token_ids.pop_back();
    all.layers.pop_back();
    all.token_seconds.pop_back();
    if (!all.logprobs_ends.empty()) all.logprobs_ends.pop_back();
    all.logprobs.resize(all.logprobs_ends.empty() ? 0 : all.logprobs_ends.back());
  }
  all.finish_reason.reset();
  all.text.clear();
  stop_checker_.restart(all.token_ids);
}

void Sequence::abort(const std::string& reason, Delta& delta) {
  delta.text = stop_checker_.abort(reason);
  write(delta);
}

void Sequence::fail(const std::string& reason, Delta& delta) {
  stop_checker_.fail(reason);
  write(delta);
}

void Sequence::write(Delta& delta) {
  completion_.finish_reason = stop_checker_.finish_reason();
  if (completion_.finish_reason) completion_.text = stop_checker_.text();
  completion_.stop_reason = stop_checker_.stop_reason();
  delta.index = index_;
  delta.finish_reason = completion_.finish_reason;
  delta.stop_reason = completion_.stop_reason;
}

}  // namespace skipdec::runtime
