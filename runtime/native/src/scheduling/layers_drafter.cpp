#include "scheduling/layers_drafter.h"

#include <algorithm>

#include "scheduling/clock.h"

namespace skipdec::runtime {

void LayersDrafter::propose(const std::vector<RowDrafts*>& asked,
                            const std::vector<RunningRow>& rows, std::int64_t most,
                            std::vector<TokenSpan>& proposed) {
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
    windows_.push_back(window(drafts->row, most));
    longest = std::max(longest, windows_.back());
  }
  for (std::int64_t drafted = 0; drafted < longest; ++drafted) {
    const double start = seconds_now();
    const std::vector<const float*>& logits = stitcher_.draft(steps_, plan_);
    for (std::size_t index = 0; index < asked.size(); ++index) {
      if (drafted >= windows_[index]) continue;
      const std::size_t place = places_[index];
      const std::int64_t token = asked[index]->row.sequence->propose(logits[place], drafted);
      proposed[index].push_back(token);
      if (drafted + 1 == windows_[index]) continue;  // the position stays within the reserved ones
      steps_[place].tokens.front() = token;
      ++steps_[place].position;
    }
    costs_.add_draft(source_, static_cast<std::int64_t>(rows.size()), seconds_now() - start);
  }
}

// Returns how many tokens the row drafts: as many as its place, its plan and ``most`` allow.
std::int64_t LayersDrafter::window(const RunningRow& row, std::int64_t most) const {
  const Schedule& schedule = *row.request->schedule;
  const std::int64_t fed = row.sequence->num_tokens() - 1;  // generated token that is fed first
  const LayerPlan& plan = schedule.plan(fed);
  if (!std::includes(plan.begin(), plan.end(), plan_.begin(), plan_.end())) return 0;
  const std::int64_t limit = std::min(most, room_of(row));
  std::int64_t tokens = 0;
  while (tokens < limit && &schedule.plan(fed + tokens + 1) == &plan) ++tokens;
  return tokens;
}

}  // namespace skipdec::runtime
