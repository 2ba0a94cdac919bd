#include "scheduling/drafters/drafted_decoding.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "scheduling/drafters/layers_drafter.h"
#include "scheduling/drafting/draft_resolver.h"

namespace skipdec::runtime {

namespace {

std::unique_ptr<Drafter> drafter_of(const DraftPart& part, bool per_client,
                                    const std::shared_ptr<const KnownNGrams>& known,
                                    SlotStitcher& stitcher, PassCosts& costs) {
  if (part.kind->name == "trained") return std::make_unique<TrainedDrafter>(part, stitcher, costs);
  if (part.kind->runs_layers) return std::make_unique<LayersDrafter>(part, stitcher, costs);
  if (part.kind->name == "lookup") return std::make_unique<LookupDrafter>();
  return std::make_unique<OwnDrafter>(per_client, known);
}

}  // namespace

DraftedDecoding::DraftedDecoding(DraftConfig config) : config_(std::move(config)) {}

void DraftedDecoding::add(std::unique_ptr<Drafter> drafter, double draft_prior) {
  policy_.add_source(SourceAcceptance(drafter->source(), drafter->priors(), draft_prior));
  drafters_.push_back(std::move(drafter));
  found_.emplace_back();
}

std::unique_ptr<DraftedDecoding> DraftedDecoding::make(
    const DraftConfig& config, const Manifest& manifest, bool per_client,
    const std::shared_ptr<const KnownNGrams>& known, SlotStitcher& stitcher) {
  auto made = std::make_unique<DraftedDecoding>(config);
  for (const DraftPart& part : config.parts) {
    const double share = byte_share(manifest, part);
    made->add(drafter_of(part, per_client, known, stitcher, made->costs()), share);
  }
  return made;
}

void DraftedDecoding::feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) {
  static const TokenSpan none;
  const bool was_paused = is_paused_;
  is_paused_ = config_.adapt && policy_.pauses();
  if (is_paused_) {
    drafting_ = 0;
    for (std::size_t index = 0; index < rows.size(); ++index) {
      feed_row(rows[index], none, steps[index]);
    }
    return;
  }
  draft_seconds_ = costs_.draft_seconds();
  held_ = 0;
  follow(rows);
  draft(rows);
  has_new_rows_ |= was_paused;  // text written during the pause is learned now
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const auto found = rows_.find(rows[index].slot);
    const bool is_followed = found != rows_.end();
    feed_row(rows[index], is_followed ? found->second.guesses.tokens : none, steps[index]);
  }
}

void DraftedDecoding::ran(const std::vector<StepRow>& steps, double seconds, double searching,
                          bool is_first) {
  if (is_paused_) return;
  std::size_t longest = 0;
  for (const StepRow& step : steps) longest = std::max(longest, step.tokens.size());
  const auto rows = static_cast<std::int64_t>(steps.size());
  // Binding engines or learning texts makes the pass long, even without guesses.
  const bool is_long = has_new_rows_ || is_first;
  if (!is_long) {
    // The cost of a pass over one token per row excludes the search for guesses.
    const double beside = longest == 1 ? searching : costs_.draft_seconds() - draft_seconds_;
    costs_.add_pass(rows, static_cast<std::int64_t>(longest), seconds - beside);
  }
  if (!config_.adapt) return;
  if (is_long || longest == 1) {  // then drafts cost only the search
    policy_.count_pass(rows, held_, searching);
  } else {
    policy_.count_pass(rows, rows + held_, seconds);
  }
}

void DraftedDecoding::accepted(const RunningRow& row, std::int64_t guesses, std::int64_t held) {
  const bool has_ended = row.sequence->has_ended();
  if (is_paused_) {
    if (has_ended) end_in_pause(row);
    return;
  }
  const auto found = rows_.find(row.slot);
  if (found == rows_.end()) return;
  FollowedRow& followed = found->second;
  if (followed.drafter != kNone && guesses > 0) {
    const auto tried = has_ended ? held : std::min(held + 1, guesses);  // with the first wrong one
    policy_.source(followed.drafter)
        .add(followed.guesses.evidence, static_cast<std::size_t>(tried),
             static_cast<std::size_t>(held), followed.drafts.results[followed.drafter]);
    held_ += held;
  }
  if (has_ended) learn(followed.drafts, row);
}

// Learns one in four texts that end during a pause, so that pauses cost almost nothing.
void DraftedDecoding::end_in_pause(const RunningRow& row) {
  constexpr std::int64_t kLearnedOfPauses = 4;
  const auto found = rows_.find(row.slot);
  if (row.request->drafts && ++ended_in_pauses_ % kLearnedOfPauses == 0) {
    RowDrafts drafts = found == rows_.end() ? begin(row) : std::move(found->second.drafts);
    learn(drafts, row);
  }
  if (found != rows_.end()) rows_.erase(found);
}

RowDrafts DraftedDecoding::begin(const RunningRow& row) const {
  RowDrafts drafts;
  drafts.row = row;
  drafts.tokens.reserve(row.request->prompt.size() +
                        static_cast<std::size_t>(row.request->max_tokens));
  drafts.tokens = row.request->prompt;
  drafts.learned = drafts.tokens.size();
  drafts.results.resize(drafters_.size());
  return drafts;
}

// Starts following new rows, and forgets rows that have ended.
void DraftedDecoding::follow(const std::vector<RunningRow>& rows) {
  ++pass_;
  has_new_rows_ = false;
  for (const RunningRow& row : rows) {
    if (!row.request->drafts) continue;
    const auto [found, is_new] = rows_.try_emplace(row.slot);
    has_new_rows_ |= is_new;
    FollowedRow& followed = found->second;
    followed.pass = pass_;
    followed.drafter = kNone;
    followed.guesses.clear();
    if (is_new) followed.drafts = begin(row);
  }
  for (auto row = rows_.begin(); row != rows_.end();) {
    row = row->second.pass == pass_ ? std::next(row) : rows_.erase(row);
  }
}

// Finds the guesses of rows that draft.
void DraftedDecoding::draft(const std::vector<RunningRow>& rows) {
  drafting_ = 0;
  if (config_.adapt && costs_.wants_plain(static_cast<std::int64_t>(rows.size()))) return;
  open_.clear();
  for (const RunningRow& row : rows) {
    const auto found = rows_.find(row.slot);
    const std::int64_t room = row.room();
    if (found != rows_.end() && room > 0) open_.push_back({&found->second, room});
  }
  if (open_.empty()) return;
  for (const OpenRow& open : open_) learn(open.row->drafts, open.row->drafts.row);
  if (config_.adapt) {
    draft_most_expected(rows);
  } else {
    draft_in_order(rows);
  }
}

// Asks one drafter after another for the rows without guesses.
void DraftedDecoding::draft_in_order(const std::vector<RunningRow>& rows) {
  for (std::size_t drafter = 0; drafter < drafters_.size(); ++drafter) {
    able_.clear();
    std::int64_t most = 0;
    for (const OpenRow& open : open_) {
      if (open.row->drafter != kNone) continue;
      if (drafters_[drafter]->reach(open.row->drafts.row, 1) == 0) continue;
      able_.push_back(open);
      most = std::max(most, std::min(open.room, config_.tokens));
    }
    if (able_.empty()) continue;
    drafting_ = std::max(drafting_, most);
    propose(drafter, rows, most);
    for (std::size_t index = 0; index < able_.size(); ++index) {
      if (proposed_[index].tokens.empty()) continue;
      able_[index].row->guesses = proposed_[index];
      able_[index].row->drafter = drafter;
    }
  }
}

// Lets the policy choose between guesses of n-grams and those that layers may draft.
void DraftedDecoding::draft_most_expected(const std::vector<RunningRow>& rows) {
  offers_.resize(open_.size());
  for (RowOffers& offers : offers_) offers.resize(drafters_.size());
  for (std::size_t drafter = 0; drafter < drafters_.size(); ++drafter) offer(drafter, rows);
  const DraftChoice choice = policy_.choose(offers_, static_cast<std::int64_t>(rows.size()));
  if (choice.count == 0) return;
  for (std::size_t drafter = 0; drafter < drafters_.size(); ++drafter) {
    able_.clear();
    for (std::size_t index = 0; index < open_.size(); ++index) {
      if (choice.sources[index] != drafter) continue;
      able_.push_back(open_[index]);
      FollowedRow& row = *open_[index].row;
      row.drafter = drafter;
      if (policy_.source(drafter).runs_layers()) continue;
      drafting_ = std::max(drafting_, choice.count);
      row.guesses = found_[drafter][index];
      row.guesses.shorten(static_cast<std::size_t>(choice.count));
    }
    if (!able_.empty() && policy_.source(drafter).runs_layers()) draft_on(drafter, rows);
  }
}

// Lets layers draft as many tokens for the rows of ``able_`` as pay.
void DraftedDecoding::draft_on(std::size_t drafter, const std::vector<RunningRow>& rows) {
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  propose(drafter, rows, config_.tokens, [&](const std::vector<Guesses>& drafted) {
    return policy_.goes_on(drafter, drafted, num_rows);
  });
  const std::size_t count = policy_.worth_checking(drafter, proposed_, num_rows);
  for (std::size_t index = 0; index < able_.size(); ++index) {
    Guesses& guesses = proposed_[index];
    drafting_ = std::max(drafting_, static_cast<std::int64_t>(guesses.tokens.size()));
    guesses.shorten(count);
    able_[index].row->guesses = guesses;
  }
}

// Writes the drafter's offers to the open rows.
void DraftedDecoding::offer(std::size_t drafter, const std::vector<RunningRow>& rows) {
  const bool runs_layers = policy_.source(drafter).runs_layers();
  if (!runs_layers) {
    able_ = open_;
    propose(drafter, rows, config_.tokens);
    found_[drafter] = proposed_;
  }
  for (std::size_t index = 0; index < open_.size(); ++index) {
    Offer& offer = offers_[index][drafter];
    RowDrafts& drafts = open_[index].row->drafts;
    offer.results = &drafts.results[drafter];
    if (runs_layers) {
      const std::int64_t most = std::min(config_.tokens, open_[index].room);
      const std::int64_t reach = drafters_[drafter]->reach(drafts.row, most);
      offer.evidence.assign(static_cast<std::size_t>(reach), 0);
    } else {
      offer.evidence = found_[drafter][index].evidence;
    }
  }
}

// Writes to ``proposed_`` the drafter's guesses for the rows of ``able_``, as far as there is room.
void DraftedDecoding::propose(std::size_t drafter, const std::vector<RunningRow>& rows,
                              std::int64_t most, const GoesOn& goes_on) {
  asked_drafts_.clear();
  for (const OpenRow& able : able_) asked_drafts_.push_back(&able.row->drafts);
  proposed_.resize(std::max(proposed_.size(), able_.size()));
  for (Guesses& guesses : proposed_) guesses.clear();
  drafters_[drafter]->propose(asked_drafts_, rows, most, goes_on, proposed_);
  for (std::size_t index = 0; index < able_.size(); ++index) {
    proposed_[index].shorten(static_cast<std::size_t>(std::min(most, able_[index].room)));
  }
}

// Lets the drafters learn what the row has written since; called when a drafter is asked or the row
// ends.
void DraftedDecoding::learn(RowDrafts& drafts, const RunningRow& row) {
  const TokenSpan& written = row.sequence->completion().token_ids;
  const auto known = static_cast<std::ptrdiff_t>(drafts.tokens.size() - row.request->prompt.size());
  drafts.tokens.insert(drafts.tokens.end(), written.begin() + known, written.end());
  if (drafts.learned == drafts.tokens.size()) return;
  for (const auto& drafter : drafters_) drafter->learn(drafts);
  drafts.learned = drafts.tokens.size();
}

}  // namespace skipdec::runtime
