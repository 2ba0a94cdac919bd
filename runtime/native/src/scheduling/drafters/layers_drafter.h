// LayersDrafter drafts with some of the model's own layers, TrainedDrafter with a trained layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduling/drafters/drafters.h"
#include "scheduling/drafting/draft_config.h"
#include "scheduling/drafting/pass_costs.h"

namespace skipdec::runtime {

// Proposes the tokens that a row's own sampler draws from the logits of a few of its layers, with
// the random numbers that the sampler will use.
//
// Drafts run on the row's own caches, where passes overwrite what drafts wrote before reading it. A
// row therefore gets a draft only if its plan has all of these layers, and only for the tokens that
// run this plan. Rows that share a layer with a row that drafts take part in its calls.
class LayersDrafter : public Drafter {
 public:
  // Runs the layers of ``part``. The other arguments must outlive this object.
  LayersDrafter(const DraftPart& part, SlotStitcher& stitcher, PassCosts& costs);

  std::string source() const override { return source_; }
  std::vector<double> priors() const override { return layer_priors(); }
  std::int64_t reach(const RunningRow& row, std::int64_t most) const override;
  void propose(const std::vector<RowDrafts*>& drafts, const std::vector<RunningRow>& rows,
               std::int64_t most, const GoesOn& goes_on, std::vector<Guesses>& proposed) override;

 protected:
  // A proposed token, and its probability by the logits from which it was drawn.
  struct Choice {
    std::int64_t token;
    double probability;
  };
  // Runs a step on ``fed``, some of ``rows``, and returns their logits.
  virtual const std::vector<const float*>& draft(const std::vector<RunningRow>& rows,
                                                 const std::vector<DraftRow>& fed);
  // Chooses the token ``ahead`` tokens after a row's next one.
  virtual Choice choose(const Sampler& sampler, const float* logits, std::int64_t ahead) const;

  SlotStitcher& stitcher() const { return stitcher_; }

 private:
  std::string source_;
  LayerPlan plan_;
  SlotStitcher& stitcher_;
  PassCosts& costs_;
  std::vector<std::int64_t> reaches_;  // of the asked rows
  std::vector<std::size_t> waiting_;   // places of the asked rows that draft another token
  std::vector<DraftRow> fed_;          // what those rows feed
  std::vector<Guesses> guessed_;       // their guesses so far
  std::vector<StepRow> steps_;         // of all rows
  std::vector<std::size_t> drafting_;  // places in ``steps_``, of the rows of ``fed_``
};

// Proposes the tokens that the bundle's trained draft layer predicts from the states of the rows'
// last pass.
//
// The layer has keys and values of its own and needs no layer of the rows' plans, so it drafts at
// every depth.
class TrainedDrafter : public LayersDrafter {
 public:
  using LayersDrafter::LayersDrafter;

  std::int64_t reach(const RunningRow& row, std::int64_t most) const override;

 protected:
  const std::vector<const float*>& draft(const std::vector<RunningRow>& rows,
                                         const std::vector<DraftRow>& fed) override;
  Choice choose(const Sampler& sampler, const float* logits, std::int64_t ahead) const override;
};

}  // namespace skipdec::runtime
