// Views of deltas and completions for C.
#include "abi/handles.h"

namespace skipdec::runtime {

namespace {

// Fills in the fields that deltas and completions have in common.
template <class Source, class View>
void show(const Source& source, View& view) {
  const auto* const text = std::get_if<std::string>(&source.stop_reason);
  const auto* const token_id = std::get_if<std::int64_t>(&source.stop_reason);
  view.text = source.text.c_str();
  view.num_bytes = source.text.size();
  view.finish_reason = source.finish_reason ? name_of(*source.finish_reason) : nullptr;
  view.stop_reason = text == nullptr ? nullptr : text->c_str();
  view.stop_token_id = token_id == nullptr ? -1 : *token_id;
  view.logprobs = source.logprobs.empty() ? nullptr : source.logprobs.data();
}

}  // namespace

skipdec_delta shown(const Delta& delta) {
  skipdec_delta view{};
  show(delta, view);
  view.index = delta.index;
  view.token_ids = &delta.token_id;
  view.num_tokens = delta.has_token ? 1 : 0;
  view.layers = delta.layers;
  view.num_logprobs = delta.logprobs.size();
  view.drafted = delta.drafted ? 1 : 0;
  return view;
}

skipdec_completion shown(const Completion& completion) {
  skipdec_completion view{};
  show(completion, view);
  view.token_ids = completion.token_ids.data();
  view.layers = completion.layers.data();
  view.num_tokens = completion.token_ids.size();
  view.logprobs_ends = completion.logprobs.empty() ? nullptr : completion.logprobs_ends.data();
  if (!completion.token_seconds.empty()) {
    view.time_to_first_token = completion.token_seconds.front();
    view.seconds = completion.token_seconds.back() - view.time_to_first_token;
  }
  view.token_seconds = completion.token_seconds.data();
  view.passes = completion.passes();
  view.drafted = completion.drafted;
  view.accepted = completion.accepted;
  return view;
}

}  // namespace skipdec::runtime
