#include "scheduling/drafting/acceptance.h"

#include <algorithm>
#include <utility>

namespace skipdec::runtime {

namespace {

constexpr double kImagined = 4;       // tries at the prior that each class of evidence begins with
constexpr double kMemory = 0.99;      // of a class, per token that was tried
constexpr double kRowImagined = 4;    // tokens that held as expected, with which a row begins
constexpr std::int64_t kStale = 128;  // passes without a checked guess, behind which all is new
constexpr double kHope = 0.8;         // of the one imagined try then
constexpr double kMostShare = 0.98;   // a row that was lucky may be wrong next

}  // namespace

double RowResults::factor() const { return (held + kRowImagined) / (expected + kRowImagined); }

SourceAcceptance::SourceAcceptance(std::string source, const std::vector<double>& priors,
                                   double draft_prior)
    : source_(std::move(source)), draft_prior_(draft_prior), tried_(priors.size(), kImagined) {
  for (const double prior : priors) held_.push_back(kImagined * prior);
}

void SourceAcceptance::expect(const std::vector<std::size_t>& evidence, const RowResults& row,
                              std::vector<double>& sums) const {
  const double factor = row.factor();
  double power = 1, total = 0;
  sums.assign(1, 0.0);
  for (const std::size_t one : evidence) {
    power *= std::min(kMostShare, share(one) * factor);
    total += power;
    sums.push_back(total);
  }
}

void SourceAcceptance::add(const std::vector<std::size_t>& evidence, std::size_t tried,
                           std::size_t held, RowResults& row) {
  idle_ = 0;
  for (std::size_t index = 0; index < tried; ++index) {
    const std::size_t one = evidence[index];
    row.expected += share(one);
    tried_[one] = tried_[one] * kMemory + 1;
    held_[one] = held_[one] * kMemory + (index < held ? 1 : 0);
  }
  row.held += static_cast<double>(held);
}

void SourceAcceptance::count_pass() {
  if (++idle_ < kStale) return;
  idle_ = 0;
  std::fill(tried_.begin(), tried_.end(), 1.0);
  std::fill(held_.begin(), held_.end(), kHope);
}

}  // namespace skipdec::runtime
