// DraftedDecoding: rows feed guesses of what comes next, and keep those that are right.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduling/drafters/drafters.h"
#include "scheduling/drafting/draft_config.h"
#include "scheduling/drafting/draft_policy.h"

namespace skipdec::runtime {

// Feeds behind each row's last token what a drafter proposes.
//
// Which drafter, and how many tokens, is the choice of `DraftPolicy`. Without ``adapt`` it is the
// first drafter that proposes anything, and as many tokens as it has. Rows whose requests ask for
// no drafts feed one token. A guess changes no text: `Decoding::accept` draws every token from full
// logits with the row's own sampler.
//
// The drafters learn from every text of a row that may draft, also where nothing was drafted; from
// every fourth that ends in a pause of the policy.
class DraftedDecoding : public Decoding {
 public:
  // `add` tells it whom to ask, in order. ``draft_prior``: the cost of a drafter's step, in passes
  // over one token, until it is measured.
  explicit DraftedDecoding(DraftConfig config);
  void add(std::unique_ptr<Drafter> drafter, double draft_prior = 0);
  // Where drafters note the time of their steps.
  PassCosts& costs() { return costs_; }
  // Makes the drafters that ``config`` names, which `resolve_draft` made; ``per_client``: none
  // learns across clients. ``known`` are the bundle's n-grams, nullptr without any. ``stitcher``
  // runs those of layers and outlives this.
  static std::unique_ptr<DraftedDecoding> make(const DraftConfig& config, const Manifest& manifest,
                                               bool per_client,
                                               const std::shared_ptr<const KnownNGrams>& known,
                                               SlotStitcher& stitcher);

  void feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) override;
  void ran(const std::vector<StepRow>& steps, double seconds, double searching,
           bool is_first) override;
  void accept(const RunningRow& row, const StepRow& fed, const float* const* logits,
              std::vector<Delta>& deltas) override;
  std::int64_t draft_steps() const override { return costs_.draft_steps(); }
  std::int64_t drafting() const override { return drafting_; }

 private:
  static constexpr std::size_t kNone = SIZE_MAX;
  struct FollowedRow {
    RowDrafts drafts;
    std::size_t drafter = kNone;  // whose guesses it feeds in the present pass
    Guesses guesses;
    std::uint64_t pass = 0;  // the last one that it took part in
  };
  // A row that has room for guesses, in the present pass.
  struct OpenRow {
    FollowedRow* row = nullptr;
    std::int64_t room = 0;  // guesses that it can use
  };

  void follow(const std::vector<RunningRow>& rows);
  void draft(const std::vector<RunningRow>& rows);
  void draft_in_order(const std::vector<RunningRow>& rows);
  void draft_most_expected(const std::vector<RunningRow>& rows);
  void offer(std::size_t drafter, const std::vector<RunningRow>& rows);
  void draft_on(std::size_t drafter, const std::vector<RunningRow>& rows);
  void propose(std::size_t drafter, const std::vector<RunningRow>& rows, std::int64_t most,
               const GoesOn& goes_on = {});
  void count(const RunningRow& row, std::size_t guesses, const std::vector<Delta>& deltas,
             std::size_t first);
  void end_in_pause(const RunningRow& row);
  void learn(RowDrafts& drafts, const RunningRow& row);
  RowDrafts begin(const RunningRow& row) const;

  DraftConfig config_;
  PassCosts costs_;
  DraftPolicy policy_{costs_};
  std::vector<std::unique_ptr<Drafter>> drafters_;
  std::unordered_map<SlotCache::Row, FollowedRow> rows_;
  std::uint64_t pass_ = 0;
  std::int64_t ended_in_pauses_ = 0;
  // Of the present pass:
  bool is_paused_ = false;
  bool has_new_rows_ = false;  // or learned what was written in a pause
  double draft_seconds_ = 0;   // of all draft steps, when it began
  std::int64_t drafting_ = 0;
  std::int64_t held_ = 0;             // guesses
  std::vector<OpenRow> open_, able_;  // ``able_``: those for which the asked drafter may propose
  std::vector<RowDrafts*> asked_drafts_;
  std::vector<Guesses> proposed_;            // for ``able_``
  std::vector<std::vector<Guesses>> found_;  // n-grams', by drafter and open row
  std::vector<RowOffers> offers_;            // by open row
};

}  // namespace skipdec::runtime
