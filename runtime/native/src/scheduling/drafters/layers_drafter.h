// LayersDrafter: drafts by some layers of the model itself; TrainedDrafter: by a layer made for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduling/drafters/drafters.h"
#include "scheduling/drafting/draft_config.h"
#include "scheduling/drafting/pass_costs.h"

namespace skipdec::runtime {

// Proposes the tokens that a row's own sampler draws from the logits of a few of its layers, with
// the random numbers that it will draw with.
//
// Drafts run on the row's own caches: what they write there is overwritten by the pass that checks
// them. So a row gets a draft only if its plan has all of these layers, and only for the tokens
// that run this plan. Rows that share a layer with one that drafts take part in its calls.
class LayersDrafter : public Drafter {
 public:
  // Runs the layers of ``part``. The others outlive it.
  LayersDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs)
      : LayersDrafter(part, part.layers, stitcher, costs) {}

  std::string source() const override { return source_; }
  std::int64_t reach(const RunningRow& row, std::int64_t most) const override;
  void propose(const std::vector<RowDrafts*>& asked, const std::vector<RunningRow>& rows,
               std::int64_t most, std::vector<Guesses>& proposed) override;

 protected:
  // Drafts for rows that run the layers of ``needed``.
  LayersDrafter(const DraftPart& part, LayerPlan needed, SlotStitcher& stitcher, PassCosts& costs);

  const LayerPlan& plan() const { return plan_; }
  SlotStitcher& stitcher() { return stitcher_; }

 private:
  std::string source_;
  LayerPlan plan_, needed_;
  SlotStitcher& stitcher_;
  PassCosts& costs_;
  std::vector<StepRow> steps_;         // of all rows
  std::vector<std::size_t> places_;    // in ``steps_``, of the asked rows
  std::vector<std::int64_t> windows_;  // tokens that each asked row drafts
  std::vector<std::size_t> waiting_;   // of the asked rows, those that draft a further token
  std::vector<std::size_t> drafting_;  // the places of these
};

// Proposes what the bundle's own draft layer makes of the rows' texts.
//
// It runs behind the model's first layers and has keys and values of its own, which only drafts
// write. So it first feeds what it has not seen of a text: the prompt before the first draft, and
// later what was written without it. Prompts and passes without drafts cost no more than before.
//
// Worked: it drafted d1 d2 d3 for positions 7, 8, 9, for which it was fed the text's token of
// position 6, d1 and d2, and d1 held. Positions 6 and 7 are seen; 8 is the next that it is fed.
class TrainedDrafter : public LayersDrafter {
 public:
  // Like LayersDrafter; the last layer of ``part`` is the draft layer.
  TrainedDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs);

  void propose(const std::vector<RowDrafts*>& asked, const std::vector<RunningRow>& rows,
               std::int64_t most, std::vector<Guesses>& proposed) override;

 private:
  void show(RowDrafts& drafts);
};

}  // namespace skipdec::runtime
