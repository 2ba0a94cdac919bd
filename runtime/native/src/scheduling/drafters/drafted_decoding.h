// DraftedDecoding: rows feed guesses of what comes next, and keep those that are right.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduling/drafters/drafters.h"
#include "scheduling/drafting/draft_config.h"

namespace skipdec::runtime {

// Feeds behind each row's last token what the first drafter with a guess proposes.
//
// How many is the policy's choice, from measured costs and acceptance; see `DraftPolicy`. Rows
// whose requests ask for no drafts feed one token. A guess changes no text: `Decoding::accept`
// draws every token from full logits with the row's own sampler. The drafters learn from every text
// of a row that may draft, also where nothing was drafted.
class DraftedDecoding : public Decoding {
 public:
  // `add` tells it whom to ask, in order. ``draft_prior``: the cost of a drafter's step, in passes
  // over one token, until it is measured.
  DraftedDecoding(DraftConfig config, std::int64_t vocab_size);
  void add(std::unique_ptr<Drafter> drafter, double draft_prior = 0);
  // Where drafters note the time of their steps.
  PassCosts& costs() { return costs_; }
  // Makes the drafters that ``config`` names, which `resolve_draft` made; ``per_client``: none
  // learns across clients. ``stitcher`` runs those of layers and outlives this.
  static std::unique_ptr<DraftedDecoding> make(const DraftConfig& config, const Manifest& manifest,
                                               bool per_client, SlotStitcher& stitcher);

  void feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) override;
  void ran(const std::vector<StepRow>& steps, double seconds) override;
  void accept(const RunningRow& row, const StepRow& fed, const float* const* logits,
              std::vector<Delta>& deltas) override;
  std::int64_t draft_steps() const override { return costs_.draft_steps(); }
  std::int64_t drafting() const override { return drafting_; }

 private:
  static constexpr std::size_t kNone = SIZE_MAX;
  // A drafter, the policy that says how many tokens it proposes, and the present pass's results.
  struct Asked {
    std::unique_ptr<Drafter> drafter;
    std::unique_ptr<DraftPolicy> policy;
    Acceptance results;
    bool has_results = false;
  };
  struct FollowedRow {
    RowDrafts drafts;
    std::size_t drafter = kNone;  // whose guesses it feeds in the present pass
    TokenSpan guesses;
    std::uint64_t pass = 0;  // the last one that it took part in
  };

  void end_pass();
  void follow(const std::vector<RunningRow>& rows);
  void draft(const std::vector<RunningRow>& rows);
  void ask(std::size_t drafter, const std::vector<RunningRow>& rows);
  std::int64_t most_drafts(std::size_t drafter, std::int64_t num_rows);
  void count(const RunningRow& row, std::int64_t guesses, std::int64_t accepted);
  void learn(FollowedRow& followed, const RunningRow& row);

  DraftConfig config_;
  std::int64_t vocab_size_;
  PassCosts costs_;
  bool has_new_rows_ = false;  // in the present pass
  double draft_seconds_ = 0;   // of all draft steps, when the present pass began
  std::vector<Asked> asked_;
  std::unordered_map<SlotCache::Row, FollowedRow> rows_;
  std::uint64_t pass_ = 0;
  std::int64_t drafting_ = 0;
  // Rows without guesses so far, in the present pass.
  struct OpenRow {
    FollowedRow* row = nullptr;
    std::int64_t room = 0;  // guesses that it can use
  };
  std::vector<OpenRow> open_, able_;  // ``able_``: those for which the asked drafter may propose
  std::vector<RowDrafts*> asked_drafts_;
  std::vector<Acceptance> asked_acceptance_;
  std::vector<TokenSpan> proposed_;
};

}  // namespace skipdec::runtime
