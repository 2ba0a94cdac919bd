#include "scheduling/drafting/acceptance.h"

#include <algorithm>
#include <utility>

namespace skipdec::runtime {

namespace {

constexpr double kImagined = 4;  // tries at its prior with which each class begins
// The same for layers, whose priors are more accurate, so that a few failures in a row don't end
// drafts.
constexpr double kImaginedOfLayers = 16;
constexpr double kMemory = 0.99;      // decay of a class's counts per token tried
constexpr double kRowImagined = 4;    // tokens that held as expected with which a row begins
constexpr std::int64_t kStale = 128;  // passes without a checked guess that reset everything
constexpr double kHope = 0.8;         // outcome of the one imagined try after that
constexpr double kMostShare = 0.98;   // even a lucky row may be wrong next
constexpr int kConfidences = 8;       // classes of the draft's probability of its guess

}  // namespace

double RowResults::factor() const { return (held + kRowImagined) / (expected + kRowImagined); }

std::vector<double> layer_priors() {
  std::vector<double> priors{0.5};
  for (int one = 0; one < kConfidences; ++one) priors.push_back((one + 0.5) / kConfidences);
  return priors;
}

std::size_t confidence_class(double probability) {
  constexpr double kHighest = 0.999;
  if (!(probability > 0)) return 1;  // NaN, too
  return 1 + static_cast<std::size_t>(std::min(probability, kHighest) * kConfidences);
}

SourceAcceptance::SourceAcceptance(std::string source, const std::vector<double>& priors,
                                   double draft_prior)
    : source_(std::move(source)),
      draft_prior_(draft_prior),
      priors_(priors),
      tried_(priors.size(), runs_layers() ? kImaginedOfLayers : kImagined),
      unchecked_(priors.size()) {
  for (const double prior : priors) held_.push_back(tried_.front() * prior);
}

void SourceAcceptance::expect(const std::vector<std::size_t>& evidence, const RowResults& row,
                              std::vector<double>& sums) const {
  const double factor = runs_layers() ? 1 : row.factor();
  double power = 1, total = 0;
  sums.assign(1, 0.0);
  for (const std::size_t one : evidence) {
    power *= std::min(kMostShare, share(one) * factor);
    total += power;
    sums.push_back(total);
  }
}

double SourceAcceptance::chance(const std::vector<std::size_t>& evidence, std::size_t count) const {
  double chance = 1;
  for (std::size_t index = 0; index < count; ++index) chance *= share(evidence[index]);
  return chance;
}

void SourceAcceptance::add(const std::vector<std::size_t>& evidence, std::size_t tried,
                           std::size_t held, RowResults& row) {
  idle_ = 0;
  for (std::size_t index = 0; index < tried; ++index) {
    const std::size_t one = evidence[index];
    row.expected += share(one);
    count(one, index < held);
    if (runs_layers() && one != kUnknown) count(kUnknown, index < held);
  }
  row.held += static_cast<double>(held);
}

void SourceAcceptance::count(std::size_t evidence, bool held) {
  unchecked_[evidence] = 0;
  tried_[evidence] = tried_[evidence] * kMemory + 1;
  held_[evidence] = held_[evidence] * kMemory + (held ? 1 : 0);
}

void SourceAcceptance::count_pass() {
  if (++idle_ >= kStale) {
    idle_ = 0;
    std::fill(tried_.begin(), tried_.end(), 1.0);
    std::fill(held_.begin(), held_.end(), kHope);
    std::fill(unchecked_.begin(), unchecked_.end(), 0);
    return;
  }
  for (std::size_t one = 0; runs_layers() && one < priors_.size(); ++one) {
    if (++unchecked_[one] < kStale) continue;
    unchecked_[one] = 0;
    tried_[one] = 1;
    held_[one] = priors_[one];
  }
}

}  // namespace skipdec::runtime
