#include "stitching/slot_stitcher.h"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {

SlotStitcher::SlotStitcher(const Engines& engines, const Manifest& manifest, const Limits& limits,
                           bool keeps_prefixes, bool has_draft_layer)
    : engines_(engines),
      pool_(limits.kv_bytes),
      cache_(pool_, KVLayout::of(manifest), engines.num_layers() + (has_draft_layer ? 1 : 0),
             limits),
      prompts_(engines, manifest),
      passes_(engines, manifest, cache_, limits.max_rows) {
  if (keeps_prefixes) prefixes_.emplace(pool_, cache_.layout(), engines.num_layers());
  if (has_draft_layer) trained_.emplace(engines, manifest, cache_, limits.max_rows);
}

const std::vector<const float*>& SlotStitcher::step(const std::vector<StepRow>& rows) {
  const bool is_ordinary = std::all_of(rows.begin(), rows.end(),
                                       [](const StepRow& row) { return row.tokens.size() == 1; });
  if (!is_ordinary) passes_.check(rows);
  for (const StepRow& row : rows) leave_bypassed(row);
  const std::vector<const float*>& logits = passes_.run(rows);
  for (std::size_t index = 0; trained_ && index < rows.size(); ++index) {
    const StepRow& row = rows[index];
    trained_->hold(row.row, row.position, row.tokens, passes_.states(index));
  }
  return logits;
}

const std::vector<const float*>& SlotStitcher::draft(const std::vector<StepRow>& rows,
                                                     const std::vector<std::size_t>& drafting,
                                                     const LayerPlan& plan) {
  for (const StepRow& row : rows) leave_bypassed(row);
  return passes_.draft(rows, drafting, plan);
}

void SlotStitcher::truncate(SlotCache::Row row, std::int64_t length) {
  const auto found = depths_.find(row);
  const std::int64_t low = found == depths_.end() ? 0 : found->second.since;
  const std::int64_t high = cache_.length(row);
  if (length < low || length > high) {
    throw Error(Status::kInternal, "row " + std::to_string(row),
                "can be rolled back to " + std::to_string(low) + " to " + std::to_string(high) +
                    " positions, not to " + std::to_string(length));
  }
  cache_.set_length(row, length);
}

// Frees the row's slots in the layers that it bypasses from now on.
void SlotStitcher::leave_bypassed(const StepRow& row) {
  const LayerPlan* const plan = row.plans.front();
  const auto found = depths_.find(row.row);
  const LayerPlan* const before = found == depths_.end() ? nullptr : found->second.plan;
  if (before == plan) return;
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    const auto runs = [&](const LayerPlan& each) {
      return std::binary_search(each.begin(), each.end(), layer);
    };
    if ((before == nullptr || runs(*before)) && !runs(*plan)) cache_.leave(row.row, layer);
  }
  depths_[row.row] = {plan, row.position};
}

void SlotStitcher::release(SlotCache::Row row) {
  if (chunked_ && (chunked_->row->row == row ||
                   std::find(chunked_->row->copies.begin(), chunked_->row->copies.end(), row) !=
                       chunked_->row->copies.end())) {
    chunked_.reset();
  }
  depths_.erase(row);
  if (trained_) trained_->drop(row);
  cache_.release(row);
}

void SlotStitcher::reset() {
  chunked_.reset();
  passes_.unbind();
  if (trained_) trained_->clear();
  depths_.clear();
  cache_.clear();
  if (prefixes_) prefixes_->clear();
}

}  // namespace skipdec::runtime
