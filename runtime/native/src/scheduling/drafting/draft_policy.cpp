#include "scheduling/drafting/draft_policy.h"

#include <algorithm>
#include <array>
#include <utility>

#include "constants.h"

namespace skipdec::runtime {

namespace {

constexpr double kLeastGain = 1.03;
constexpr double kKeptGain = 0.98;  // of the best: with that the number of drafts stays
constexpr std::array<std::int64_t, 4> kChoices{1, 2, 4, 7};  // each is measured on its own
constexpr std::int64_t kTryTokens = 2;
constexpr std::int64_t kFirstWait = 16;     // passes between two tries
constexpr std::int64_t kLongestWait = 256;  // of them
constexpr double kShare = 0.02;             // of all passes, that drafts may cost
constexpr double kCredit = 0.5;             // passes that they may cost at once behind a pause
constexpr double kMostSpare = 4;  // of what they gained, kept for passes that gain nothing

}  // namespace

void DraftPolicy::add_source(SourceAcceptance source) {
  sources_.push_back(std::move(source));
  tries_.push_back({kFirstWait, kFirstWait});
}

bool DraftPolicy::pauses() {
  if (!is_pausing_) return false;
  spare_ += kShare;
  if (spare_ >= kCredit) {
    is_pausing_ = false;
    costs_.measure_plain_again();
  }
  return true;
}

DraftChoice DraftPolicy::choose(const std::vector<RowOffers>& rows, std::int64_t num_rows) {
  passes_ = costs_.pass_costs(num_rows, constants::kDraftMaxTokens + 1);
  steps_.clear();
  for (const SourceAcceptance& one : sources_) {
    const double prior = one.draft_prior();
    steps_.push_back(one.runs_layers() ? costs_.draft_cost(one.source(), num_rows, prior) : 0);
  }
  DraftChoice tried;
  if (try_overdue(rows, num_rows, tried)) return tried;
  expected_.resize(rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    expected_[row].resize(sources_.size());
    for (std::size_t source = 0; source < sources_.size(); ++source) {
      const Offer& offer = rows[row][source];
      expected_[row][source].clear();
      if (offer.evidence.empty()) continue;
      sources_[source].expect(offer.evidence, *offer.results, expected_[row][source]);
    }
  }
  return best(sources_.size(), num_rows);
}

void DraftPolicy::count_pass(std::int64_t num_rows, std::int64_t written, double seconds) {
  count(num_rows, seconds, static_cast<double>(written) / static_cast<double>(num_rows));
}

void DraftPolicy::count_search(std::int64_t num_rows, std::int64_t held, double seconds) {
  count(num_rows, seconds, static_cast<double>(held) / static_cast<double>(num_rows));
}

void DraftPolicy::count(std::int64_t num_rows, double seconds, double earned) {
  for (Tries& tries : tries_) tries.left = std::max<std::int64_t>(0, tries.left - 1);
  const std::optional<double> cost = costs_.in_plain_passes(num_rows, seconds);
  if (!cost) return;
  spare_ = std::min(spare_ + kShare + earned - *cost, kMostSpare);
  is_pausing_ = spare_ < 0;
}

// Finds a try of the first drafter that is due and offers something.
bool DraftPolicy::try_overdue(const std::vector<RowOffers>& rows, std::int64_t num_rows,
                              DraftChoice& found) {
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    Tries& tries = tries_[source];
    if (tries.left > 0) continue;
    std::size_t longest = 0, drafting = 0;
    found.sources.assign(rows.size(), std::nullopt);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::size_t offered = rows[row][source].evidence.size();
      longest = std::max(longest, offered);
      if (offered == 0) continue;
      ++drafting;
      found.sources[row] = source;
    }
    const auto count = std::min(static_cast<std::size_t>(kTryTokens), longest);
    const auto all = static_cast<double>(num_rows);
    const double most = (all + static_cast<double>(drafting * count)) / all;
    const double cost = passes_[count] + static_cast<double>(count) * steps_[source];
    if (count == 0 || most < kLeastGain * cost || !affords(cost)) continue;
    tries.wait = std::min(2 * tries.wait, kLongestWait);
    tries.left = tries.wait;
    found.count = static_cast<std::int64_t>(count);
    found.is_try = true;
    return true;
  }
  return false;
}

// Returns the choice of the highest gain. One with as many tokens as the last is kept where its
// gain is nearly the highest.
DraftChoice DraftPolicy::best(std::size_t num_sources, std::int64_t num_rows) {
  candidates_.clear();
  std::vector<std::size_t> asked;
  for (std::size_t source = 0; source < num_sources; ++source) {
    if (!sources_[source].runs_layers()) asked.push_back(source);
  }
  find_candidates(asked, std::nullopt, num_rows);
  for (std::size_t source = 0; source < num_sources; ++source) {
    if (!sources_[source].runs_layers()) continue;
    asked.push_back(source);
    find_candidates(asked, source, num_rows);
    asked.pop_back();
  }
  const Candidate* highest = nullptr;
  const Candidate* kept = nullptr;
  for (const Candidate& one : candidates_) {
    if (highest == nullptr || one.gain > highest->gain) highest = &one;
    const bool is_last = one.choice.count == last_;
    if (is_last && (kept == nullptr || one.gain > kept->gain)) kept = &one;
  }
  if (highest == nullptr) return {};
  const bool keeps = kept != nullptr && kept->gain >= kKeptGain * highest->gain;
  const DraftChoice& chosen = keeps ? kept->choice : highest->choice;
  last_ = chosen.count;
  for (const std::optional<std::size_t>& source : chosen.sources) {
    if (source) tries_[*source] = {kFirstWait, kFirstWait};
  }
  return chosen;
}

// Adds the choices that gain enough with the drafters ``asked``, of which ``paid`` runs layers.
void DraftPolicy::find_candidates(const std::vector<std::size_t>& asked,
                                  std::optional<std::size_t> paid, std::int64_t num_rows) {
  std::size_t longest = 0;
  for (const auto& row : expected_) {
    for (const std::size_t source : asked) {
      longest = std::max(longest, std::max<std::size_t>(row[source].size(), 1) - 1);
    }
  }
  for (const std::int64_t choice : kChoices) {
    const auto count = static_cast<std::size_t>(choice);
    if (count > longest) return;
    Candidate found;
    double held = 0;
    assign(asked, count, found.choice, held);
    const auto& sources = found.choice.sources;
    if (paid && std::find(sources.begin(), sources.end(), paid) == sources.end()) continue;
    const double steps = paid ? static_cast<double>(count) * steps_[*paid] : 0;
    const auto all = static_cast<double>(num_rows);
    const double cost = passes_[count] + steps;
    found.gain = (all + held) / all / cost;
    if (found.gain < kLeastGain || !affords(cost)) continue;
    found.choice.count = choice;
    candidates_.push_back(std::move(found));
  }
}

// Gives each row the drafter with the most expected tokens, and sums these up in ``held``. Of equal
// ones the first is taken.
void DraftPolicy::assign(const std::vector<std::size_t>& asked, std::size_t count,
                         DraftChoice& choice, double& held) const {
  for (const auto& row : expected_) {
    std::optional<std::size_t>& chosen = choice.sources.emplace_back();
    double most = 0;
    for (const std::size_t source : asked) {
      const std::vector<double>& sums = row[source];
      if (sums.empty()) continue;
      const double expected = sums[std::min(count, sums.size() - 1)];
      if (expected <= most) continue;
      chosen = source;
      most = expected;
    }
    held += most;
  }
}

}  // namespace skipdec::runtime
