#include "scheduling/drafters/layers_drafter.h"

#include <algorithm>
#include <utility>

#include "scheduling/clock.h"

namespace skipdec::runtime {

LayersDrafter::LayersDrafter(const DraftPart& part, LayerPlan needed, SlotStitcher& stitcher,
                             PassCosts& costs)
    : source_(part.text()),
      plan_(part.layers),
      needed_(std::move(needed)),
      stitcher_(stitcher),
      costs_(costs) {}

void LayersDrafter::propose(const std::vector<RowDrafts*>& asked,
                            const std::vector<RunningRow>& rows, std::int64_t most,
                            std::vector<Guesses>& proposed) {
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
    waiting_.clear();
    drafting_.clear();
    for (std::size_t index = 0; index < asked.size(); ++index) {
      if (drafted >= windows_[index]) continue;
      waiting_.push_back(index);
      drafting_.push_back(places_[index]);
    }
    const std::vector<const float*>& logits = stitcher_.draft(steps_, drafting_, plan_);
    for (std::size_t one = 0; one < waiting_.size(); ++one) {
      const std::size_t index = waiting_[one], place = drafting_[one];
      const Sequence& sequence = *asked[index]->row.sequence;
      const std::int64_t token = sequence.propose(logits[one], size, drafted);
      proposed[index].add(token, 0);
      if (drafted + 1 == windows_[index]) continue;  // the position stays within the reserved ones
      steps_[place].tokens.front() = token;
      ++steps_[place].position;
    }
    costs_.add_draft(source_, static_cast<std::int64_t>(rows.size()), thread_seconds_now() - start);
  }
}

std::int64_t LayersDrafter::reach(const RunningRow& row, std::int64_t most) const {
  const Schedule& schedule = *row.request->schedule;
  const std::int64_t fed = row.sequence->num_tokens() - 1;  // generated token that is fed first
  const LayerPlan& plan = schedule.plan(fed);
  if (!std::includes(plan.begin(), plan.end(), needed_.begin(), needed_.end())) return 0;
  const std::int64_t limit = std::min(most, room_of(row));
  std::int64_t tokens = 0;
  while (tokens < limit && &schedule.plan(fed + tokens + 1) == &plan) ++tokens;
  return tokens;
}

TrainedDrafter::TrainedDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs)
    : LayersDrafter(part, LayerPlan(part.layers.begin(), part.layers.end() - 1), stitcher, costs) {}

void TrainedDrafter::propose(const std::vector<RowDrafts*>& asked,
                             const std::vector<RunningRow>& rows, std::int64_t most,
                             std::vector<Guesses>& proposed) {
  for (RowDrafts* const drafts : asked) show(*drafts);
  LayersDrafter::propose(asked, rows, most, proposed);
  for (std::size_t index = 0; index < asked.size(); ++index) {
    const TokenSpan& tokens = proposed[index].tokens;
    if (tokens.empty()) continue;
    TokenSpan& fed = asked[index]->fed;
    fed.assign(1, asked[index]->tokens.back());
    fed.insert(fed.end(), tokens.begin(), tokens.end() - 1);
  }
}

// Feeds the draft layer what it has not seen of the row's text, all but the last token.
void TrainedDrafter::show(RowDrafts& drafts) {
  const TokenSpan& tokens = drafts.tokens;
  const std::size_t end = tokens.size() - 1;
  for (const std::int64_t token : drafts.fed) {
    if (drafts.num_seen == end || tokens[drafts.num_seen] != token) break;
    ++drafts.num_seen;
  }
  drafts.fed.clear();
  if (drafts.num_seen == end) return;
  const auto unseen = tokens.begin() + static_cast<std::ptrdiff_t>(drafts.num_seen);
  stitcher().follow(drafts.row.slot, TokenSpan(unseen, tokens.end() - 1),
                    static_cast<std::int64_t>(drafts.num_seen), plan());
  drafts.num_seen = end;
}

}  // namespace skipdec::runtime
