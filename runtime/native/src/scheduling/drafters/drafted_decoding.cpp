#include "scheduling/drafters/drafted_decoding.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "scheduling/drafters/layers_drafter.h"
#include "scheduling/drafting/draft_resolver.h"

namespace skipdec::runtime {

namespace {

std::unique_ptr<Drafter> drafter_of(const DraftPart& part, const std::optional<std::int64_t>& head,
                                    bool per_client, SlotStitcher& stitcher, PassCosts& costs) {
  if (part.kind->name == "trained")
    return std::make_unique<TrainedDrafter>(part, head, stitcher, costs);
  if (part.kind->runs_layers) return std::make_unique<LayersDrafter>(part, head, stitcher, costs);
  if (part.kind->name == "lookup") return std::make_unique<LookupDrafter>();
  return std::make_unique<OwnDrafter>(per_client);
}

}  // namespace

DraftedDecoding::DraftedDecoding(DraftConfig config, std::int64_t vocab_size)
    : config_(std::move(config)), vocab_size_(vocab_size) {}

void DraftedDecoding::add(std::unique_ptr<Drafter> drafter, double draft_prior) {
  auto policy = std::make_unique<DraftPolicy>(drafter->source(), costs_, draft_prior);
  asked_.push_back({std::move(drafter), std::move(policy), {}, false});
}

std::unique_ptr<DraftedDecoding> DraftedDecoding::make(const DraftConfig& config,
                                                       const Manifest& manifest, bool per_client,
                                                       SlotStitcher& stitcher) {
  auto made = std::make_unique<DraftedDecoding>(config, manifest.model.vocab_size);
  for (const DraftPart& part : config.parts) {
    const double share = byte_share(manifest, part.layers, config.head.has_value());
    made->add(drafter_of(part, config.head, per_client, stitcher, made->costs()), share);
  }
  return made;
}

void DraftedDecoding::feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) {
  end_pass();
  draft_seconds_ = costs_.draft_seconds();
  follow(rows);
  draft(rows);
  static const TokenSpan none;
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const auto found = rows_.find(rows[index].slot);
    feed_row(rows[index], found == rows_.end() ? none : found->second.guesses, steps[index]);
  }
}

void DraftedDecoding::ran(const std::vector<StepRow>& steps, double seconds) {
  std::size_t longest = 0;
  for (const StepRow& step : steps) longest = std::max(longest, step.tokens.size());
  // A pass with new rows also had to find its route, and a fruitless one asked for guesses.
  const bool is_fruitless = longest == 1 && drafting_ > 0;
  if (!has_new_rows_ && !is_fruitless) {
    costs_.add_pass(static_cast<std::int64_t>(steps.size()), static_cast<std::int64_t>(longest),
                    seconds - (costs_.draft_seconds() - draft_seconds_));
  }
  for (const Asked& asked : asked_) asked.policy->count_pass();
}

void DraftedDecoding::accept(const RunningRow& row, const StepRow& fed, const float* const* logits,
                             std::vector<Delta>& deltas) {
  const std::int64_t before = row.sequence->num_tokens();
  const auto guesses = static_cast<std::int64_t>(fed.tokens.size()) - 1;
  try {
    Decoding::accept(row, fed, logits, deltas);
  } catch (...) {
    count(row, guesses, row.sequence->num_tokens() - before);
    throw;
  }
  count(row, guesses, row.sequence->num_tokens() - before);
}

// Counts what came of a row's guesses.
void DraftedDecoding::count(const RunningRow& row, std::int64_t guesses, std::int64_t accepted) {
  const auto found = rows_.find(row.slot);
  if (found == rows_.end()) return;
  FollowedRow& followed = found->second;
  if (followed.drafter != kNone && guesses > 0) {
    const std::int64_t held = std::max<std::int64_t>(0, accepted - 1);
    const bool was_wrong = held < guesses && !row.sequence->has_ended();
    const auto right = static_cast<double>(held);
    Asked& asked = asked_[followed.drafter];
    asked.has_results = true;
    for (Acceptance* each : {&asked.results, &followed.drafts.acceptance[followed.drafter]}) {
      each->tried += right + (was_wrong ? 1 : 0);
      each->held += right;
    }
  }
  if (row.sequence->has_ended()) learn(followed, row);
}

// Tells the policies what came of the last pass.
void DraftedDecoding::end_pass() {
  for (Asked& asked : asked_) {
    if (asked.has_results) asked.policy->add(asked.results);
    asked.results = {};
    asked.has_results = false;
  }
}

// Begins with new rows, and forgets those that are gone.
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
    if (!is_new) continue;
    RowDrafts& drafts = followed.drafts;
    drafts.row = row;
    drafts.tokens.reserve(row.request->prompt.size() +
                          static_cast<std::size_t>(row.request->max_tokens));
    drafts.tokens = row.request->prompt;
    drafts.learned = drafts.tokens.size();
    drafts.acceptance.resize(asked_.size());
  }
  for (auto row = rows_.begin(); row != rows_.end();) {
    row = row->second.pass == pass_ ? std::next(row) : rows_.erase(row);
  }
}

// Asks one drafter after the other for the rows that have no guesses yet.
void DraftedDecoding::draft(const std::vector<RunningRow>& rows) {
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  drafting_ = 0;
  if (config_.adapt && costs_.wants_plain(num_rows)) return;
  open_.clear();
  for (const RunningRow& row : rows) {
    const auto found = rows_.find(row.slot);
    const std::int64_t room = room_of(row);
    if (found != rows_.end() && room > 0) open_.push_back({&found->second, room});
  }
  for (std::size_t drafter = 0; drafter < asked_.size() && !open_.empty(); ++drafter) {
    ask(drafter, rows);
    open_.erase(std::remove_if(open_.begin(), open_.end(),
                               [](const OpenRow& open) { return open.row->drafter != kNone; }),
                open_.end());
  }
}

// Takes what the drafter proposes for the open rows, up to the first token that the vocabulary does
// not have.
void DraftedDecoding::ask(std::size_t drafter, const std::vector<RunningRow>& rows) {
  const Drafter& who = *asked_[drafter].drafter;
  able_.clear();
  std::copy_if(open_.begin(), open_.end(), std::back_inserter(able_),
               [&](const OpenRow& open) { return who.can_draft(open.row->drafts.row); });
  if (able_.empty()) return;
  const std::int64_t most = most_drafts(drafter, static_cast<std::int64_t>(rows.size()));
  drafting_ = std::max(drafting_, most);
  if (most == 0) return;
  for (const OpenRow& open : open_) learn(*open.row, open.row->drafts.row);
  asked_drafts_.clear();
  for (const OpenRow& open : able_) asked_drafts_.push_back(&open.row->drafts);
  proposed_.resize(std::max(proposed_.size(), able_.size()));
  for (TokenSpan& tokens : proposed_) tokens.clear();
  asked_[drafter].drafter->propose(asked_drafts_, rows, most, proposed_);
  for (std::size_t index = 0; index < able_.size(); ++index) {
    const TokenSpan& proposed = proposed_[index];
    const auto limit =
        std::min({most, able_[index].room, static_cast<std::int64_t>(proposed.size())});
    const auto end =
        std::find_if(proposed.begin(), proposed.begin() + limit,
                     [this](std::int64_t token) { return token < 0 || token >= vocab_size_; });
    if (end == proposed.begin()) continue;
    able_[index].row->guesses.assign(proposed.begin(), end);
    able_[index].row->drafter = drafter;
  }
}

std::int64_t DraftedDecoding::most_drafts(std::size_t drafter, std::int64_t num_rows) {
  std::int64_t most = 0;
  for (const OpenRow& open : able_) most = std::max(most, open.room);
  most = std::min(most, config_.tokens);
  if (!config_.adapt) return most;
  asked_acceptance_.clear();
  for (const OpenRow& open : able_) {
    asked_acceptance_.push_back(open.row->drafts.acceptance[drafter]);
  }
  return asked_[drafter].policy->choose(asked_acceptance_, num_rows, most);
}

// Lets the drafters learn what the row has written since, when one is asked or the row ends.
void DraftedDecoding::learn(FollowedRow& followed, const RunningRow& row) {
  RowDrafts& drafts = followed.drafts;
  const TokenSpan& written = row.sequence->completion().token_ids;
  const auto known = static_cast<std::ptrdiff_t>(drafts.tokens.size() - row.request->prompt.size());
  drafts.tokens.insert(drafts.tokens.end(), written.begin() + known, written.end());
  if (drafts.learned == drafts.tokens.size()) return;
  for (const Asked& asked : asked_) asked.drafter->learn(drafts);
  drafts.learned = drafts.tokens.size();
}

}  // namespace skipdec::runtime
