#include "scheduling/drafted_decoding.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {

namespace {

// Returns how many guesses the row can use: a pass yields one token more than it has guesses.
std::int64_t room_of(const RunningRow& row) {
  return row.request->max_tokens - row.sequence->num_tokens() - 1;
}

std::unique_ptr<Drafter> drafter_of(const DraftPart& part, bool per_client) {
  if (part.kind->name == "own") return std::make_unique<OwnDrafter>(per_client);
  return std::make_unique<LookupDrafter>();
}

}  // namespace

DraftedDecoding::DraftedDecoding(const DraftConfig& config, Drafters drafters,
                                 std::int64_t vocab_size)
    : config_(config), vocab_size_(vocab_size) {
  for (std::unique_ptr<Drafter>& drafter : drafters) {
    auto policy = std::make_unique<DraftPolicy>(drafter->source(), costs_);
    asked_.push_back({std::move(drafter), std::move(policy), {}, false});
  }
}

std::unique_ptr<DraftedDecoding> DraftedDecoding::make(const DraftConfig& config,
                                                       std::int64_t vocab_size, bool per_client) {
  Drafters drafters;
  for (const DraftPart& part : config.parts) {
    if (part.kind->runs_layers) {
      throw Error(Status::kUsage, "draft",
                  "'" + part.text() + "' runs layers, which libskipdec cannot do; allowed: own, " +
                      "lookup; the Python runtime runs all drafters");
    }
    drafters.push_back(drafter_of(part, per_client));
  }
  return std::make_unique<DraftedDecoding>(config, std::move(drafters), vocab_size);
}

void DraftedDecoding::feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) {
  end_pass();
  follow(rows);
  draft(rows);
  static const TokenSpan kNoGuesses;
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const auto found = rows_.find(rows[index].slot);
    feed_row(rows[index], found == rows_.end() ? kNoGuesses : found->second.guesses, steps[index]);
  }
}

void DraftedDecoding::ran(const std::vector<StepRow>& steps, double seconds) {
  std::size_t longest = 0;
  for (const StepRow& step : steps) longest = std::max(longest, step.tokens.size());
  costs_.add_pass(static_cast<std::int64_t>(steps.size()), static_cast<std::int64_t>(longest),
                  seconds);
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

// Counts what came of a row's guesses, and lets the drafters learn its new tokens.
void DraftedDecoding::count(const RunningRow& row, std::int64_t guesses, std::int64_t accepted) {
  for (const Asked& asked : asked_) asked.policy->count_tokens(accepted);
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
  learn(followed, row);
}

// Tells the policies what came of the last pass.
void DraftedDecoding::end_pass() {
  for (Asked& asked : asked_) {
    if (asked.has_results) asked.policy->add(asked.results);
    asked.results = {};
    asked.has_results = false;
  }
}

// Learns what rows have written, begins with new ones, and forgets those that are gone.
void DraftedDecoding::follow(const std::vector<RunningRow>& rows) {
  ++pass_;
  for (const RunningRow& row : rows) {
    if (!row.request->drafts) continue;
    const auto [found, is_new] = rows_.try_emplace(row.slot);
    FollowedRow& followed = found->second;
    followed.pass = pass_;
    followed.drafter = kNone;
    followed.guesses.clear();
    if (!is_new) continue;
    RowDrafts& drafts = followed.drafts;
    drafts.client = row.request->client;
    drafts.tokens.reserve(row.request->prompt.size() +
                          static_cast<std::size_t>(row.request->max_tokens));
    drafts.tokens = row.request->prompt;
    drafts.prompt = drafts.learned = drafts.tokens.size();
    drafts.acceptance.resize(asked_.size());
    learn(followed, row);
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
    ask(drafter, num_rows);
    open_.erase(std::remove_if(open_.begin(), open_.end(),
                               [](const OpenRow& open) { return open.row->drafter != kNone; }),
                open_.end());
  }
}

// Takes what the drafter proposes for the open rows, up to the first token that the vocabulary does
// not have.
void DraftedDecoding::ask(std::size_t drafter, std::int64_t num_rows) {
  const std::int64_t most = most_drafts(drafter, num_rows);
  drafting_ = std::max(drafting_, most);
  if (most == 0) return;
  open_drafts_.clear();
  for (const OpenRow& open : open_) open_drafts_.push_back(&open.row->drafts);
  proposed_.resize(std::max(proposed_.size(), open_.size()));
  for (TokenSpan& tokens : proposed_) tokens.clear();
  asked_[drafter].drafter->propose(open_drafts_, most, proposed_);
  for (std::size_t index = 0; index < open_.size(); ++index) {
    const TokenSpan& proposed = proposed_[index];
    const auto limit =
        std::min({most, open_[index].room, static_cast<std::int64_t>(proposed.size())});
    const auto end =
        std::find_if(proposed.begin(), proposed.begin() + limit,
                     [this](std::int64_t token) { return token < 0 || token >= vocab_size_; });
    if (end == proposed.begin()) continue;
    open_[index].row->guesses.assign(proposed.begin(), end);
    open_[index].row->drafter = drafter;
  }
}

std::int64_t DraftedDecoding::most_drafts(std::size_t drafter, std::int64_t num_rows) {
  std::int64_t most = 0;
  for (const OpenRow& open : open_) most = std::max(most, open.room);
  most = std::min(most, config_.tokens);
  if (!config_.adapt) return most;
  open_acceptance_.clear();
  for (const OpenRow& open : open_) {
    open_acceptance_.push_back(open.row->drafts.acceptance[drafter]);
  }
  return asked_[drafter].policy->choose(open_acceptance_, num_rows, most);
}

// Lets the drafters learn the row's new tokens.
void DraftedDecoding::learn(FollowedRow& followed, const RunningRow& row) {
  RowDrafts& drafts = followed.drafts;
  const TokenSpan& written = row.sequence->completion().token_ids;
  const auto known = static_cast<std::ptrdiff_t>(drafts.tokens.size() - drafts.prompt);
  drafts.tokens.insert(drafts.tokens.end(), written.begin() + known, written.end());
  for (const Asked& asked : asked_) asked.drafter->learn(drafts);
  drafts.learned = drafts.tokens.size();
}

}  // namespace skipdec::runtime
