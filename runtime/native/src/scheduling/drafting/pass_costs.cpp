#include "scheduling/drafting/pass_costs.h"

#include <algorithm>
#include <numeric>

#include "constants.h"

namespace skipdec::runtime {

namespace {

constexpr std::int64_t kPlain = 4;  // measured in a row, because the first finds everything cold
constexpr std::int64_t kForgotten = 256;  // passes after which a cost is forgotten
constexpr double kPriorFurther = 0.04;    // a row's further token, in passes, until it is measured
constexpr double kLeastSeconds = 1e-9;

// Returns the smallest power of two that is not below ``rows``.
std::int64_t class_of(std::int64_t rows) {
  std::int64_t power = 1;
  while (power < rows) power *= 2;
  return power;
}

template <class Map, class Key>
const RecentMean* measured(const Map& means, const Key& key) {
  const auto found = means.find(key);
  return found != means.end() && found->second.is_measured() ? &found->second : nullptr;
}

}  // namespace

void RecentMean::add(double sample, std::int64_t number) {
  if (is_stale(number)) count_ = 0;
  number_ = number;
  const auto size = static_cast<std::int64_t>(last_.size());
  last_[static_cast<std::size_t>(count_ % size)] = sample;
  ++count_;
  const std::int64_t known = std::min(count_, size);
  const double* const begin = last_.data();
  const double* const end = begin + known;
  // Not the median, because passes that bind engines or find their data cold cost time, too.
  const double others = std::accumulate(begin, end, -*std::max_element(begin, end));
  mean_ = others / static_cast<double>(std::max<std::int64_t>(1, known - 1));
}

bool RecentMean::is_stale(std::int64_t number) const { return number - number_ >= kForgotten; }

void PassCosts::add_pass(std::int64_t rows, std::int64_t tokens, double seconds) {
  const std::int64_t size = class_of(rows), number = ++count_[size], drafts = tokens - 1;
  RecentMean& plain = plain_[size];
  seconds = std::max(seconds, kLeastSeconds);
  std::int64_t& left = plain_left_.try_emplace(size, kPlain).first->second;
  if (drafts == 0) {
    plain.add(seconds, number);
    left = std::max<std::int64_t>(0, left - 1);
    return;
  }
  if (plain.is_measured()) {
    further_[{size, drafts}].add(std::max(0.0, seconds / plain.mean() - 1), number);
  }
  if (plain.is_stale(number)) left = kPlain;
}

void PassCosts::add_draft(const std::string& source, std::int64_t rows, double seconds,
                          bool is_first) {
  ++draft_steps_;
  draft_seconds_ += seconds;
  if (is_first) return;
  const std::int64_t size = class_of(rows);
  steps_[{source, size}].add(std::max(seconds, kLeastSeconds), count_[size]);
}

bool PassCosts::wants_plain(std::int64_t rows) const {
  const auto left = plain_left_.find(class_of(rows));
  return left == plain_left_.end() || left->second > 0;
}

std::optional<double> PassCosts::in_plain_passes(std::int64_t rows, double seconds) const {
  const RecentMean* const plain = measured(plain_, class_of(rows));
  if (plain == nullptr) return std::nullopt;
  return seconds / plain->mean();
}

double PassCosts::further(std::int64_t rows, std::int64_t drafts) const {
  const std::int64_t size = class_of(rows);
  const double least = kPriorFurther * static_cast<double>(size);
  double expected = static_cast<double>(drafts) * least;
  for (std::int64_t known = 1; known <= constants::kDraftMaxTokens; ++known) {
    const RecentMean* const recent = measured(further_, std::pair{size, known});
    if (recent == nullptr || recent->is_stale(count_.at(size))) continue;
    if (known <= drafts) {
      const double further = std::max(recent->mean() / static_cast<double>(known) / 2, least);
      expected = recent->mean() + static_cast<double>(drafts - known) * further;
    } else {
      expected = std::min(expected, recent->mean());
    }
  }
  return std::min(static_cast<double>(drafts), expected);
}

double PassCosts::draft_cost(const std::string& source, std::int64_t rows, double prior) const {
  const RecentMean* const step = measured(steps_, std::pair{source, class_of(rows)});
  const RecentMean* const plain = measured(plain_, class_of(rows));
  return plain == nullptr || step == nullptr ? prior : step->mean() / plain->mean();
}

}  // namespace skipdec::runtime
