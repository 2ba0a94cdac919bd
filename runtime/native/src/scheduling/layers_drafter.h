// LayersDrafter: drafts by some layers of the model itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drafting/draft_config.h"
#include "scheduling/drafters.h"

namespace skipdec::runtime {

// Proposes the tokens that a row's own sampler draws from the logits of a few of its layers, with
// the random numbers that it will draw with.
//
// Drafts run on the row's own caches: what they write there is overwritten by the pass that checks
// them. So a row gets a draft only if its plan has all of these layers, and only for the tokens
// that run this plan. Rows that share a layer with one that drafts take part in its calls.
class LayersDrafter : public Drafter {
 public:
  // Runs the layers of ``part``; the others outlive it.
  LayersDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs)
      : source_(part.text()), plan_(part.layers), stitcher_(stitcher), costs_(costs) {}

  std::string source() const override { return source_; }
  bool can_draft(const RunningRow& row) const override { return window(row, 1) > 0; }
  void propose(const std::vector<RowDrafts*>& asked, const std::vector<RunningRow>& rows,
               std::int64_t most, std::vector<TokenSpan>& proposed) override;

 private:
  std::int64_t window(const RunningRow& row, std::int64_t most) const;

  std::string source_;
  LayerPlan plan_;
  SlotStitcher& stitcher_;
  PassCosts& costs_;
  std::vector<StepRow> steps_;         // of all rows
  std::vector<std::size_t> places_;    // in ``steps_``, of the asked rows
  std::vector<std::int64_t> windows_;  // tokens that each asked row drafts
};

}  // namespace skipdec::runtime
