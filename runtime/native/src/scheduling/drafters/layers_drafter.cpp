#include "scheduling/drafters/layers_drafter.h"

#include <algorithm>

#include "scheduling/clock.h"
#include "tokens/logprobs.h"

namespace skipdec::runtime {

LayersDrafter::LayersDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs)
    : source_(part.text()), plan_(part.layers), stitcher_(stitcher), costs_(costs) {}

void LayersDrafter::propose(const std::vector<RowDrafts*>& drafts,
                            const std::vector<RunningRow>& rows, std::int64_t most,
                            const GoesOn& goes_on, std::vector<Guesses>& proposed) {
  reaches_.clear();
  for (const RowDrafts* const one : drafts) reaches_.push_back(reach(one->row, most));
  for (std::int64_t drafted = 0; drafted < most; ++drafted) {
    const double start = thread_seconds_now();
    const std::int64_t bound = stitcher_.num_bound();
    waiting_.clear();
    fed_.clear();
    guessed_.clear();
    for (std::size_t index = 0; index < drafts.size(); ++index) {
      if (drafted >= reaches_[index]) continue;
      const RunningRow& row = drafts[index]->row;
      const std::int64_t token =
          drafted == 0 ? row.sequence->last_token() : proposed[index].tokens.back();
      waiting_.push_back(index);
      fed_.push_back({row.slot, token, row.num_positions() + drafted});
      guessed_.push_back(proposed[index]);
    }
    if (waiting_.empty() || (drafted > 0 && goes_on && !goes_on(guessed_))) return;
    const std::vector<const float*>& logits = draft(rows, fed_);
    for (std::size_t one = 0; one < waiting_.size(); ++one) {
      const Sampler& sampler = drafts[waiting_[one]]->row.sequence->sampler();
      const Choice choice = choose(sampler, logits[one], drafted);
      proposed[waiting_[one]].add(choice.token, confidence_class(choice.probability));
    }
    costs_.add_draft(source_, static_cast<std::int64_t>(rows.size()), thread_seconds_now() - start,
                     stitcher_.num_bound() != bound);
  }
}

const std::vector<const float*>& LayersDrafter::draft(const std::vector<RunningRow>& rows,
                                                      const std::vector<DraftRow>& fed) {
  steps_.resize(rows.size());
  drafting_.resize(fed.size());
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const RunningRow& row = rows[index];
    StepRow& step = steps_[index];
    step.row = row.slot;
    step.position = row.num_positions();
    step.tokens.assign(1, row.sequence->last_token());
    step.plans.assign(1, &row.request->schedule->plan(row.sequence->num_tokens() - 1));
    const auto found = std::find_if(fed.begin(), fed.end(),
                                    [&](const DraftRow& each) { return each.row == row.slot; });
    if (found == fed.end()) continue;  // the row takes part in calls, but its logits are not read
    drafting_[static_cast<std::size_t>(found - fed.begin())] = index;
    step.position = found->position;
    step.tokens.front() = found->token;
  }
  return stitcher_.draft(steps_, drafting_, plan_);
}

LayersDrafter::Choice LayersDrafter::choose(const Sampler& sampler, const float* logits,
                                            std::int64_t ahead) const {
  const std::int64_t size = stitcher_.num_draft_logits();
  const std::int64_t token = sampler.propose(logits, size, ahead);
  return {token, probability_of(logits, size, token)};
}

std::int64_t LayersDrafter::reach(const RunningRow& row, std::int64_t most) const {
  const Schedule& schedule = *row.request->schedule;
  const std::int64_t fed = row.sequence->num_tokens() - 1;  // generated token that is fed first
  const LayerPlan& plan = schedule.plan(fed);
  if (!std::includes(plan.begin(), plan.end(), plan_.begin(), plan_.end())) return 0;
  const std::int64_t limit = std::min(most, row.room());
  std::int64_t tokens = 0;
  while (tokens < limit && &schedule.plan(fed + tokens + 1) == &plan) ++tokens;
  return tokens;
}

const std::vector<const float*>& TrainedDrafter::draft(const std::vector<RunningRow>& /*rows*/,
                                                       const std::vector<DraftRow>& fed) {
  return stitcher().draft_trained(fed);
}

LayersDrafter::Choice TrainedDrafter::choose(const Sampler& sampler, const float* logits,
                                             std::int64_t ahead) const {
  const std::vector<std::int64_t>& ids = stitcher().trained_token_ids();
  const std::int64_t token = sampler.propose(logits, ids, ahead);
  const std::int64_t index = std::lower_bound(ids.begin(), ids.end(), token) - ids.begin();
  return {token, probability_of(logits, static_cast<std::int64_t>(ids.size()), index)};
}

std::int64_t TrainedDrafter::reach(const RunningRow& row, std::int64_t most) const {
  return std::min(most, row.room());
}

}  // namespace skipdec::runtime
