#include "scheduling/drafting/pass_costs.h"

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
constexpr double kLeastSeconds = 1e-9;

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
  ++draft_steps_;
  draft_seconds_ += seconds;
  const std::int64_t size = class_of(rows);
  drafts_[{source, size}].add(seconds, count_[size]);
}

std::optional<double> PassCosts::in_plain_passes(std::int64_t rows, double seconds) const {
  const RecentSeconds* const one = plain(rows);
  if (one == nullptr) return std::nullopt;
  return seconds / one->cost();
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

}  // namespace skipdec::runtime
