#include "scheduling/drafting/draft_policy.h"

#include <algorithm>
#include <numeric>

#include "constants.h"

namespace skipdec::runtime {

namespace {

constexpr std::int64_t kRefresh =
    256;                              // passes with drafts, behind which a few without are measured
constexpr std::int64_t kPlain = 4;    // so few: the first finds everything cold
constexpr std::int64_t kStale = 256;  // passes, behind which a cost is forgotten
constexpr double kPriorSlope = 0.04;  // a row's further token, in steps, before it was measured
constexpr double kImagined = 8;       // tries at the engine's acceptance that a row begins with
constexpr double kMemory = 0.99;      // of the engine's acceptance, per pass with drafts
constexpr double kTryMemory = 0.5;    // while drafts are off: old results must not outweigh tries
constexpr double kLeastGain = 1.03;
constexpr double kLeastSeconds = 1e-9;
constexpr double kKeptGain = 0.98;  // of the best: with that the number of drafts stays
constexpr std::int64_t kTryTokens = 2;
constexpr std::array<std::int64_t, 5> kChoices{0, 1, 2, 4, 7};  // each is measured on its own
// Passes between two tries while drafts are off.
constexpr std::int64_t kFirstWait = 16;
constexpr std::int64_t kLongestWait = 256;

// Returns the power of two that is nearest from above.
std::int64_t class_of(std::int64_t rows) {
  std::int64_t power = 1;
  while (power < rows) power *= 2;
  return power;
}

template <class Map, class Key>
const RecentSeconds* measured(const Map& times, const Key& key) {
  const auto found = times.find(key);
  return found != times.end() && found->second.is_measured() ? &found->second : nullptr;
}

}  // namespace

void RecentSeconds::add(double seconds, std::int64_t number) {
  if (is_stale(number)) count_ = 0;
  number_ = number;
  const auto size = static_cast<std::int64_t>(last_.size());
  last_[static_cast<std::size_t>(count_ % size)] = seconds;
  ++count_;
  const std::int64_t known = std::min(count_, size);
  const double* const begin = last_.data();
  const double* const end = begin + known;
  // Not the median: passes that bind engines or find their data cold are paid for, too.
  const double others = std::accumulate(begin, end, -*std::max_element(begin, end));
  cost_ =
      std::max(others / static_cast<double>(std::max<std::int64_t>(1, known - 1)), kLeastSeconds);
}

bool RecentSeconds::is_stale(std::int64_t number) const { return number - number_ >= kStale; }

void PassCosts::add_pass(std::int64_t rows, std::int64_t tokens, double seconds) {
  const std::int64_t size = class_of(rows);
  const std::int64_t number = ++count_[size];
  passes_[{size, tokens}].add(seconds, number);
  if (tokens == 1) {
    plain_[size] = number;
    std::int64_t& left = plain_left(size);
    left = std::max<std::int64_t>(0, left - 1);
  } else if (number - plain_[size] >= kRefresh) {
    plain_left(size) = kPlain;
  }
}

void PassCosts::add_draft(const std::string& source, std::int64_t rows, double seconds) {
  const std::int64_t size = class_of(rows);
  drafts_[{source, size}].add(seconds, count_[size]);
  ++draft_steps_;
  draft_seconds_ += seconds;
}

bool PassCosts::wants_plain(std::int64_t rows) const {
  const auto left = plain_left_.find(class_of(rows));
  return left == plain_left_.end() || left->second > 0;
}

// Returns how many passes over one token per row are wanted now, for a class of rows.
std::int64_t& PassCosts::plain_left(std::int64_t size) {
  return plain_left_.try_emplace(size, kPlain).first->second;
}

std::vector<double> PassCosts::pass_costs(std::int64_t rows, std::int64_t most) const {
  constexpr double kUnknown = 0;
  const std::int64_t size = class_of(rows);
  const double slope = kPriorSlope * static_cast<double>(size);
  const auto longest = static_cast<std::size_t>(std::max(most, constants::kDraftMaxTokens + 1));
  std::vector<double> known(longest, kUnknown), costs(longest);
  known.front() = costs.front() = 1;
  for (std::size_t index = 1; index < longest; ++index) {
    const auto tokens = static_cast<std::int64_t>(index) + 1;
    const RecentSeconds* const several = measured(passes_, std::pair{size, tokens});
    if (plain(rows) != nullptr && several != nullptr && !several->is_stale(count_.at(size))) {
      known[index] = several->cost() / plain(rows)->cost();
    }
    const double prior = std::min(costs[index - 1] + slope, static_cast<double>(tokens));
    costs[index] = known[index] == kUnknown ? prior : known[index];
  }
  for (std::size_t index = longest - 2; index > 0; --index) {
    if (known[index] == kUnknown) costs[index] = std::min(costs[index], costs[index + 1]);
  }
  costs.resize(static_cast<std::size_t>(most));
  return costs;
}

double PassCosts::draft_cost(const std::string& source, std::int64_t rows, double prior) const {
  const RecentSeconds* const step = measured(drafts_, std::pair{source, class_of(rows)});
  if (plain(rows) == nullptr || step == nullptr) return prior;
  return step->cost() / plain(rows)->cost();
}

const RecentSeconds* PassCosts::plain(std::int64_t rows) const {
  return measured(passes_, std::pair{class_of(rows), std::int64_t{1}});
}

double Acceptance::drawn_towards(double share) const {
  return (held + kImagined * share) / (tried + kImagined);
}

DraftPolicy::DraftPolicy(std::string source, const PassCosts& costs, double draft_prior)
    : source_(std::move(source)),
      costs_(costs),
      draft_prior_(draft_prior),
      engine_{kImagined, kImagined / 2},
      wait_(kFirstWait) {}

std::int64_t DraftPolicy::choose(const std::vector<Acceptance>& rows, std::int64_t num_rows,
                                 std::int64_t most) {
  if (!is_on_ && !has_news_ && passes_left_ > 0) return 0;
  has_news_ = false;
  find_costs(num_rows, most);
  shares_.assign(1, acceptance());
  find_gains(shares_);
  if (*std::max_element(gains_.begin(), gains_.end()) >= kLeastGain) {
    is_on_ = true;
    wait_ = kFirstWait;
    shares_.clear();
    for (const Acceptance& row : rows) shares_.push_back(row.drawn_towards(acceptance()));
    find_gains(shares_);
    const std::int64_t found = best(most);
    const auto gain_of = [this](std::int64_t count) {
      return gains_[static_cast<std::size_t>(count)];
    };
    if (last_ > most || gain_of(last_) < kKeptGain * gain_of(found)) last_ = found;
    return last_;
  }
  if (is_on_) {
    is_on_ = false;
    passes_left_ = wait_;
  }
  const std::int64_t tried = std::min(kTryTokens, most);
  shares_.assign(1, 1.0);
  find_gains(shares_);
  if (passes_left_ > 0 || gains_[static_cast<std::size_t>(tried)] < kLeastGain) return 0;
  wait_ = std::min(2 * wait_, kLongestWait);
  passes_left_ = wait_;
  return tried;
}

void DraftPolicy::add(const Acceptance& results) {
  has_news_ = true;
  const double memory = is_on_ ? kMemory : kTryMemory;
  engine_.tried = engine_.tried * memory + results.tried;
  engine_.held = engine_.held * memory + results.held;
}

// Finds the costs of a pass with 0 to ``most`` drafts.
void DraftPolicy::find_costs(std::int64_t num_rows, std::int64_t most) {
  const double draft = costs_.draft_cost(source_, num_rows, draft_prior_);
  cycle_costs_ = costs_.pass_costs(num_rows, most + 1);
  for (std::size_t count = 0; count < cycle_costs_.size(); ++count) {
    cycle_costs_[count] += static_cast<double>(count) * draft;
  }
}

// Finds the gain of each number of drafts over none, for rows whose drafts hold with ``shares``.
void DraftPolicy::find_gains(const std::vector<double>& shares) {
  gains_.assign(1, 1.0);
  powers_.assign(shares.size(), 1);
  auto tokens = static_cast<double>(shares.size());
  for (std::size_t count = 1; count < cycle_costs_.size(); ++count) {
    for (std::size_t row = 0; row < shares.size(); ++row) {
      powers_[row] *= shares[row];
      tokens += powers_[row];
    }
    gains_.push_back(tokens / static_cast<double>(shares.size()) / cycle_costs_[count] *
                     cycle_costs_.front());
  }
}

// Returns the choice with the highest gain.
std::int64_t DraftPolicy::best(std::int64_t most) const {
  std::int64_t found = 0;
  for (const std::int64_t count : kChoices) {
    if (count > most) break;
    if (gains_[static_cast<std::size_t>(count)] > gains_[static_cast<std::size_t>(found)]) {
      found = count;
    }
  }
  return found;
}

}  // namespace skipdec::runtime
