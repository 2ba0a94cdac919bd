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
// Drafts run on the row's own caches: what they write there is overwritten by passes before they
// read it. So a row gets a draft only if its plan has all of these layers, and only for the tokens
// that run this plan. Rows that share a layer with one that drafts take part in its calls.
class LayersDrafter : public Drafter {
 public:
  // Runs the layers of ``part``. The others outlive it.
  LayersDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs);

  std::string source() const override { return source_; }
  std::vector<double> priors() const override { return layer_priors(); }
  std::int64_t reach(const RunningRow& row, std::int64_t most) const override;
  void propose(const std::vector<RowDrafts*>& asked, const std::vector<RunningRow>& rows,
               std::int64_t most, const GoesOn& goes_on, std::vector<Guesses>& proposed) override;

 protected:
  // A proposed token, and its probability by the logits that it was drawn from.
  struct Choice {
    std::int64_t token;
    double probability;
  };
  // Runs a step on ``fed``, some of ``rows``, and returns their logits.
  virtual const std::vector<const float*>& draft(const std::vector<RunningRow>& rows,
                                                 const std::vector<DraftRow>& fed);
  // Chooses the token ``ahead`` tokens behind a row's next.
  virtual Choice choose(const Sequence& sequence, const float* logits, std::int64_t ahead) const;

  SlotStitcher& stitcher() const { return stitcher_; }

 private:
  std::string source_;
  LayerPlan plan_;
  SlotStitcher& stitcher_;
  PassCosts& costs_;
  std::vector<std::int64_t> reaches_;  // of the asked rows
  std::vector<std::size_t> waiting_;   // of the asked rows, those that draft a further token
  std::vector<DraftRow> fed_;          // what these feed
  std::vector<Guesses> behind_;        // their guesses so far
  std::vector<StepRow> steps_;         // of all rows
  std::vector<std::size_t> drafting_;  // places in ``steps_``, of the rows of ``fed_``
};

// Proposes what the bundle's trained draft layer makes of the states of the rows' last pass.
//
// It has keys and values of its own and needs no layer of the rows' plans, so it drafts at every
// depth.
class TrainedDrafter : public LayersDrafter {
 public:
  using LayersDrafter::LayersDrafter;

  std::int64_t reach(const RunningRow& row, std::int64_t most) const override;

 protected:
  const std::vector<const float*>& draft(const std::vector<RunningRow>& rows,
                                         const std::vector<DraftRow>& fed) override;
  Choice choose(const Sequence& sequence, const float* logits, std::int64_t ahead) const override;
};

}  // namespace skipdec::runtime
