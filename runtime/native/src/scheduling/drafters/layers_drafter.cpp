#include "scheduling/drafters/layers_drafter.h"

#include <algorithm>

#include "scheduling/clock.h"
#include "tokens/logprobs.h"

namespace skipdec::runtime {

LayersDrafter::LayersDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs)
    : source_(part.text()), plan_(part.layers), stitcher_(stitcher), costs_(costs) {}

void LayersDrafter::propose(const std::vector<RowDrafts*>& asked,
                            const std::vector<RunningRow>& rows, std::int64_t most,
                            const GoesOn& goes_on, std::vector<Guesses>& proposed) {
  steps_.resize(rows.size());
  for (std::size_t index = 0; index < rows.size(); ++index) {
    steps_[index].row = rows[index].slot;
    steps_[index].position = rows[index].num_positions();
    steps_[index].tokens.assign(1, rows[index].sequence->last_token());
    const std::int64_t fed = rows[index].sequence->num_tokens() - 1;
    steps_[index].plans.assign(1, &rows[index].request->schedule->plan(fed));
  }
  places_.clear();
  windows_.clear();
  std::int64_t longest = 0;
  for (const RowDrafts* const drafts : asked) {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const RunningRow& row) {
      return row.slot == drafts->row.slot;
    });
    places_.push_back(static_cast<std::size_t>(found - rows.begin()));
    windows_.push_back(reach(drafts->row, most));
    longest = std::max(longest, windows_.back());
  }
  const std::int64_t size = stitcher_.num_draft_logits();
  for (std::int64_t drafted = 0; drafted < longest; ++drafted) {
    const double start = thread_seconds_now();
    const std::int64_t bound = stitcher_.num_bound();
    waiting_.clear();
    drafting_.clear();
    behind_.clear();
    for (std::size_t index = 0; index < asked.size(); ++index) {
      if (drafted >= windows_[index]) continue;
      waiting_.push_back(index);
      drafting_.push_back(places_[index]);
      behind_.push_back(proposed[index]);
    }
    if (drafted > 0 && goes_on && !goes_on(behind_)) return;
    const std::vector<const float*>& logits = stitcher_.draft(steps_, drafting_, plan_);
    for (std::size_t one = 0; one < waiting_.size(); ++one) {
      const std::size_t index = waiting_[one], place = drafting_[one];
      const Sequence& sequence = *asked[index]->row.sequence;
      const std::int64_t token = sequence.propose(logits[one], size, drafted);
      proposed[index].add(token, confidence_class(probability_of(logits[one], size, token)));
      if (drafted + 1 == windows_[index]) continue;  // the position stays within the reserved ones
      steps_[place].tokens.front() = token;
      ++steps_[place].position;
    }
    costs_.add_draft(source_, static_cast<std::int64_t>(rows.size()), thread_seconds_now() - start,
                     stitcher_.num_bound() != bound);
  }
}

std::int64_t LayersDrafter::reach(const RunningRow& row, std::int64_t most) const {
  const Schedule& schedule = *row.request->schedule;
  const std::int64_t fed = row.sequence->num_tokens() - 1;  // generated token that is fed first
  const LayerPlan& plan = schedule.plan(fed);
  if (!std::includes(plan.begin(), plan.end(), plan_.begin(), plan_.end())) return 0;
  const std::int64_t limit = std::min(most, room_of(row));
  std::int64_t tokens = 0;
  while (tokens < limit && &schedule.plan(fed + tokens + 1) == &plan) ++tokens;
  return tokens;
}

TrainedDrafter::TrainedDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs)
    : source_(part.text()), stitcher_(stitcher), costs_(costs) {}

void TrainedDrafter::propose(const std::vector<RowDrafts*>& asked,
                             const std::vector<RunningRow>& rows, std::int64_t most,
                             const GoesOn& goes_on, std::vector<Guesses>& proposed) {
  const std::vector<std::int64_t>& ids = stitcher_.trained_token_ids();
  for (std::int64_t drafted = 0; drafted < most; ++drafted) {
    const double start = thread_seconds_now();
    const std::int64_t bound = stitcher_.num_bound();
    waiting_.clear();
    fed_.clear();
    behind_.clear();
    for (std::size_t index = 0; index < asked.size(); ++index) {
      const RunningRow& row = asked[index]->row;
      if (drafted >= reach(row, most)) continue;
      const bool is_first = proposed[index].tokens.empty();
      const std::int64_t token =
          is_first ? row.sequence->last_token() : proposed[index].tokens.back();
      waiting_.push_back(index);
      fed_.push_back({row.slot, token, row.num_positions() + drafted});
      behind_.push_back(proposed[index]);
    }
    if (waiting_.empty() || (drafted > 0 && goes_on && !goes_on(behind_))) return;
    const std::vector<const float*>& logits = stitcher_.draft_trained(fed_);
    for (std::size_t one = 0; one < waiting_.size(); ++one) {
      const Sequence& sequence = *asked[waiting_[one]]->row.sequence;
      const std::int64_t token = sequence.propose(logits[one], ids, drafted);
      const std::int64_t index = std::lower_bound(ids.begin(), ids.end(), token) - ids.begin();
      const double probability =
          probability_of(logits[one], static_cast<std::int64_t>(ids.size()), index);
      proposed[waiting_[one]].add(token, confidence_class(probability));
    }
    costs_.add_draft(source_, static_cast<std::int64_t>(rows.size()), thread_seconds_now() - start,
                     stitcher_.num_bound() != bound);
  }
}

std::int64_t TrainedDrafter::reach(const RunningRow& row, std::int64_t most) const {
  return std::min(most, room_of(row));
}

}  // namespace skipdec::runtime
