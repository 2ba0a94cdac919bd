// DraftedDecoding: rows feed guesses of the next tokens, and keep right ones.
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

// Feeds each row's last token, followed by a drafter's proposals.
//
// `DraftPolicy` chooses the drafter and the number of tokens. Without ``adapt``, it is the first
// drafter that proposes anything, and all of its tokens. Rows whose requests switch drafts off feed
// one token. Guesses don't change texts, because `Decoding::accept` draws every token from full
// logits with the row's own sampler.
//
// Drafters learn from the text of every row that may draft, even if nothing was drafted, but only
// from every fourth text that ends during a pause of the policy.
class DraftedDecoding : public Decoding {
 public:
  // `add` adds drafters in the order in which they are asked. ``draft_prior`` is the cost of a
  // draft step, in passes over one token, until it is measured.
  explicit DraftedDecoding(DraftConfig config);
  void add(std::unique_ptr<Drafter> drafter, double draft_prior = 0);
  // The costs to which drafters report the time of their steps.
  PassCosts& costs() { return costs_; }
  // Creates the drafters of ``config``, which `resolve_draft` returned. ``per_client``: no drafter
  // learns across clients. ``known`` are the bundle's n-grams, or nullptr. ``stitcher`` runs drafts
  // of layers and must outlive this object.
  static std::unique_ptr<DraftedDecoding> make(const DraftConfig& config, const Manifest& manifest,
                                               bool per_client,
                                               const std::shared_ptr<const KnownNGrams>& known,
                                               SlotStitcher& stitcher);

  void feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) override;
  void ran(const std::vector<StepRow>& steps, double seconds, double searching,
           bool is_first) override;
  void accepted(const RunningRow& row, std::int64_t guesses, std::int64_t held) override;
  std::int64_t draft_steps() const override { return costs_.draft_steps(); }
  std::int64_t drafting() const override { return drafting_; }

 private:
  static constexpr std::size_t kNone = SIZE_MAX;
  struct FollowedRow {
    RowDrafts drafts;
    std::size_t drafter = kNone;  // whose guesses the row feeds in this pass
    Guesses guesses;
    std::uint64_t pass = 0;  // the last pass in which the row took part
  };
  // A row that has room for guesses in this pass.
  struct OpenRow {
    FollowedRow* row = nullptr;
    std::int64_t room = 0;  // guesses that the row can use
  };

  void follow(const std::vector<RunningRow>& rows);
  void draft(const std::vector<RunningRow>& rows);
  void draft_in_order(const std::vector<RunningRow>& rows);
  void draft_most_expected(const std::vector<RunningRow>& rows);
  void offer(std::size_t drafter, const std::vector<RunningRow>& rows);
  void draft_on(std::size_t drafter, const std::vector<RunningRow>& rows);
  void propose(std::size_t drafter, const std::vector<RunningRow>& rows, std::int64_t most,
               const GoesOn& goes_on = {});
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
  // State of the present pass:
  bool is_paused_ = false;
  bool has_new_rows_ = false;  // or text written in a pause was learned
  double draft_seconds_ = 0;   // of all draft steps, when the pass began
  std::int64_t drafting_ = 0;
  std::int64_t held_ = 0;             // guesses
  std::vector<OpenRow> open_, able_;  // ``able_``: rows for which the asked drafter may propose
  std::vector<RowDrafts*> asked_drafts_;
  std::vector<Guesses> proposed_;            // for ``able_``
  std::vector<std::vector<Guesses>> found_;  // n-grams', by drafter and open row
  std::vector<RowOffers> offers_;            // by open row
};

}  // namespace skipdec::runtime
