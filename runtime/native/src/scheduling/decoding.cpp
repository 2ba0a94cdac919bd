#include "scheduling/decoding.h"

#include "scheduling/clock.h"

namespace skipdec::runtime {

void Decoding::feed_row(const RunningRow& row, const TokenSpan& guesses, StepRow& step) {
  step.row = row.slot;
  step.position = row.num_positions();
  step.tokens.assign(1, row.sequence->last_token());
  step.tokens.insert(step.tokens.end(), guesses.begin(), guesses.end());
  step.plans.clear();
  for (std::int64_t index = row.sequence->num_tokens() - 1; step.plans.size() < step.tokens.size();
       ++index) {
    step.plans.push_back(&row.request->schedule->plan(index));
  }
}

void Decoding::accept(const RunningRow& row, const StepRow& fed, const float* const* logits,
                      std::vector<Delta>& deltas) {
  for (std::size_t index = 0; index < fed.tokens.size(); ++index) {
    const auto layers = static_cast<std::int64_t>(fed.plans[index]->size());
    Delta& delta = deltas.emplace_back();
    delta.number = row.number;
    try {
      row.sequence->accept(logits[index], layers, seconds_now(), delta);
    } catch (...) {
      deltas.pop_back();
      throw;
    }
    if (row.sequence->has_ended() || index + 1 == fed.tokens.size()) return;
    if (row.sequence->last_token() != fed.tokens[index + 1]) return;
    delta.drafted = true;
  }
}

void OrdinaryDecoding::feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) {
  for (std::size_t index = 0; index < rows.size(); ++index) feed_row(rows[index], {}, steps[index]);
}

}  // namespace skipdec::runtime
