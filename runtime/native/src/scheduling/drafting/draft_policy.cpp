#include "scheduling/drafting/draft_policy.h"

#include <algorithm>
#include <array>
#include <utility>

namespace skipdec::runtime {

namespace {

constexpr double kLeastGain = 1.03;
constexpr double kStaying = 1.02;  // advantage of the number of drafts that was chosen last
constexpr std::array<std::int64_t, 4> kChoices{1, 2, 4, 7};
constexpr double kShare = 0.02;    // fraction of all passes that drafts may cost
constexpr double kMostSpare = 16;  // passes of gain kept for passes that gain nothing

}  // namespace

void DraftPolicy::add_source(SourceAcceptance source) { sources_.push_back(std::move(source)); }

bool DraftPolicy::pauses() {
  if (!is_pausing_) return false;
  spare_ += kShare;
  if (spare_ >= kCredit) {
    is_pausing_ = false;
    costs_.measure_plain_again();
  }
  return true;
}

void DraftPolicy::count_pass(std::int64_t num_rows, std::int64_t written, double seconds) {
  for (SourceAcceptance& source : sources_) source.count_pass();
  const std::optional<double> cost = costs_.in_plain_passes(num_rows, seconds);
  if (!cost) return;
  const double earned = static_cast<double>(written) / static_cast<double>(num_rows);
  spare_ = std::clamp(spare_ + kShare + earned - *cost, -kCredit, kMostSpare);
  is_pausing_ |= spare_ < 0;
}

DraftChoice DraftPolicy::choose(const std::vector<RowOffers>& rows, std::int64_t num_rows) {
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
  DraftChoice best;
  double highest = 0;
  gain_ = 1;
  bool is_covered = compare(std::nullopt, num_rows, best, highest);
  for (std::size_t source = 0; source < sources_.size(); ++source) {
    if (sources_[source].runs_layers()) is_covered &= compare(source, num_rows, best, highest);
  }
  if (best.count > 0) last_ = best.count;
  is_pausing_ |= !is_covered && best.count == 0;
  return best;
}

bool DraftPolicy::compare(std::optional<std::size_t> paid, std::int64_t num_rows, DraftChoice& best,
                          double& highest) {
  double step = 0;
  if (paid) {
    const SourceAcceptance& one = sources_[*paid];
    step = costs_.draft_cost(one.source(), num_rows, one.draft_prior());
  }
  std::size_t longest = 0;
  for (const auto& row : expected_) {
    for (std::size_t source = 0; source < row.size(); ++source) {
      if (!is_asked(source, paid)) continue;
      longest = std::max(longest, std::max<std::size_t>(row[source].size(), 1) - 1);
    }
  }
  for (const std::int64_t count : kChoices) {
    const double cost = 1 + costs_.further(num_rows, count) + static_cast<double>(count) * step;
    if (count > static_cast<std::int64_t>(longest)) break;
    if (cost - 1 > spare_) return count > 1;
    double held = 0;
    DraftChoice found = assign(paid, count, held);
    const auto& sources = found.sources;
    const auto all = static_cast<double>(num_rows);
    const double gain = (all + held) / all / cost;
    const bool is_idle = paid && std::find(sources.begin(), sources.end(), paid) == sources.end();
    if (gain < kLeastGain || is_idle) continue;
    const double stays = count == last_ ? kStaying : 1;
    if (gain * stays <= highest) continue;
    highest = gain * stays;
    gain_ = gain;
    best = std::move(found);
  }
  return true;
}

// Gives each row the drafter with the most expected tokens, and sums these up in ``held``. Of equal
// drafters, the first is taken, and n-grams before layers.
DraftChoice DraftPolicy::assign(std::optional<std::size_t> paid, std::int64_t count,
                                double& held) const {
  DraftChoice choice{count, {}};
  for (const auto& row : expected_) {
    std::optional<std::size_t>& chosen = choice.sources.emplace_back();
    double most = 0;
    const auto compare_source = [&](std::size_t source) {
      const std::vector<double>& sums = row[source];
      if (sums.empty()) return;
      const double expected = sums[std::min(static_cast<std::size_t>(count), sums.size() - 1)];
      if (expected <= most) return;
      chosen = source;
      most = expected;
    };
    for (std::size_t source = 0; source < row.size(); ++source) {
      if (!sources_[source].runs_layers()) compare_source(source);
    }
    if (paid) compare_source(*paid);
    held += most;
  }
  return choice;
}

bool DraftPolicy::goes_on(std::size_t source, const std::vector<Guesses>& drafted,
                          std::int64_t num_rows) const {
  const SourceAcceptance& one = sources_[source];
  const std::size_t ahead = drafted.front().tokens.size();
  const auto now = static_cast<std::int64_t>(ahead);
  const double step = costs_.draft_cost(one.source(), num_rows, one.draft_prior());
  const double further = costs_.further(num_rows, now + 1);
  if (further + static_cast<double>(ahead + 1) * step > spare_) return false;
  const double cost = further - costs_.further(num_rows, now) + step;
  const double chance = held(source, drafted, ahead) * one.share(kUnknown);
  return chance > gain_ * cost * static_cast<double>(num_rows);
}

std::size_t DraftPolicy::worth_checking(std::size_t source, const std::vector<Guesses>& drafted,
                                        std::int64_t num_rows) const {
  std::size_t longest = 0, best = 0;
  for (const Guesses& guesses : drafted) longest = std::max(longest, guesses.tokens.size());
  double most = 0, expected = 0;
  for (std::size_t count = 1; count <= longest; ++count) {
    expected += held(source, drafted, count);
    const double further = costs_.further(num_rows, static_cast<std::int64_t>(count));
    const double worth = expected - gain_ * further * static_cast<double>(num_rows);
    if (worth <= most) continue;
    most = worth;
    best = count;
  }
  return best;
}

double DraftPolicy::held(std::size_t source, const std::vector<Guesses>& drafted,
                         std::size_t count) const {
  double held = 0;
  for (const Guesses& guesses : drafted) {
    if (guesses.tokens.size() < count) continue;
    held += sources_[source].chance(guesses.evidence, count);
  }
  return held;
}

}  // namespace skipdec::runtime
