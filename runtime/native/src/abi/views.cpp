// Views of deltas and completions for C.
#include "abi/handles.h"

namespace skipdec::runtime {

namespace {

void copy(const std::vector<Logprob>& logprobs, std::vector<skipdec_logprob>& shown) {
  shown.clear();
  shown.reserve(logprobs.size());
  for (const Logprob& each : logprobs) {
    shown.push_back({each.token_id, each.logprob, each.rank});
  }
}

// Fills in the end of a delta or a completion.
template <class Source, class Shown>
void show_end(const Source& source, Shown& shown) {
  const auto* const text = std::get_if<std::string>(&source.stop_reason);
  const auto* const token_id = std::get_if<std::int64_t>(&source.stop_reason);
  shown.finish_reason = source.finish_reason ? name_of(*source.finish_reason) : nullptr;
  shown.stop_reason = text == nullptr ? nullptr : text->c_str();
  shown.stop_token_id = token_id == nullptr ? -1 : *token_id;
}

}  // namespace

const skipdec_delta& DeltaView::show(const Delta& delta) {
  copy(delta.logprobs, logprobs_);
  shown_.index = delta.index;
  shown_.token_ids = &delta.token_id;
  shown_.num_tokens = delta.has_token ? 1 : 0;
  shown_.text = delta.text.c_str();
  shown_.num_bytes = delta.text.size();
  show_end(delta, shown_);
  shown_.layers = delta.layers;
  shown_.logprobs = logprobs_.empty() ? nullptr : logprobs_.data();
  shown_.num_logprobs = logprobs_.size();
  shown_.drafted = delta.drafted ? 1 : 0;
  return shown_;
}

CompletionView::CompletionView(const Completion& completion) {
  copy(completion.logprobs, logprobs_);
  shown_.text = completion.text.c_str();
  shown_.num_bytes = completion.text.size();
  shown_.token_ids = completion.token_ids.data();
  shown_.layers = completion.layers.data();
  shown_.num_tokens = completion.token_ids.size();
  show_end(completion, shown_);
  shown_.logprobs = logprobs_.empty() ? nullptr : logprobs_.data();
  shown_.logprobs_ends = logprobs_.empty() ? nullptr : completion.logprobs_ends.data();
  if (!completion.token_seconds.empty()) {
    shown_.time_to_first_token = completion.token_seconds.front();
    shown_.seconds = completion.token_seconds.back() - shown_.time_to_first_token;
  }
  shown_.token_seconds = completion.token_seconds.data();
  shown_.passes = completion.passes;
  shown_.drafted = completion.drafted;
  shown_.accepted = completion.accepted;
}

}  // namespace skipdec::runtime
