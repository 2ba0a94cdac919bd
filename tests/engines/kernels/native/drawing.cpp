#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "families.h"
#include "sampling/draw.h"

namespace skipdec::tests {
namespace {

// Returns the exponentially distributed number of a token, with the library's logarithm.
double exponential(std::uint64_t token_id, double uniform) {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 31U) - 1;
  const double scaled = uniform * 0x1p24;
  const auto high = static_cast<std::uint64_t>(scaled);
  const auto low = static_cast<std::uint64_t>((scaled - std::floor(scaled)) * 0x1p24);
  const auto mixed = [](std::uint64_t x) { return (x & kMask) * (2 * (x & kMask) + 1) & kMask; };
  std::uint64_t hash = mixed(token_id * 0x1E3779B1U + high * 0x5851F42DU);
  hash = mixed(hash + (hash >> 15U) + low * 0x14057B7FU);
  hash = mixed(hash + (hash >> 15U));
  return -std::log1p(-(static_cast<double>(hash) + 0.5) * 0x1p-31);
}

// Draws by definition, with sorted tokens and the library's exp.
std::int64_t expected(const Draw& draw, const std::vector<float>& logits) {
  const float best = *std::max_element(logits.begin(), logits.end());
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::size_t kept = order.size();
  while (logits[order[kept - 1]] < best + draw.margin) --kept;
  const auto top_k = static_cast<std::size_t>(draw.top_k);
  if (top_k > 0) {
    while (kept > top_k && logits[order[kept - 1]] < logits[order[top_k - 1]]) --kept;
  }
  std::vector<double> weights(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    total += weights[order[i]] = std::exp(static_cast<double>(logits[order[i]] - best) *
                                          static_cast<double>(draw.inverse_temperature));
  }
  double above = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    if (above >= draw.top_p * total) weights[order[i]] = 0;
    above += weights[order[i]];
  }
  std::size_t winner = 0;
  double largest = 0;
  for (std::size_t token = 0; token < weights.size(); ++token) {
    const std::int64_t* const ids = draw.token_ids;
    const auto id = ids == nullptr ? token : static_cast<std::size_t>(ids[token]);
    const double quotient = weights[token] / exponential(id, draw.uniform);
    if (quotient > largest) winner = token;
    largest = std::max(largest, quotient);
  }
  return static_cast<std::int64_t>(winner);
}

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr Draw kDraws[] = {
    {1.25F, kNone, 0, 1, 0, nullptr},    {1.25F, kNone, 0, 0.95, 0, nullptr},
    {0.5F, kNone, 0, 0.31, 0, nullptr},  {1.0F, kNone, 5, 1, 0, nullptr},
    {1.0F, kNone, 40, 0.9, 0, nullptr},  {4.0F, -1.5F, 0, 1, 0, nullptr},
    {0.75F, -3.0F, 70, 0.8, 0, nullptr},
};

}  // namespace

Outcome drawing(InstructionSet set) {
  Outcome outcome;
  Numbers numbers;
  for (const std::int64_t size : {1, 15, 16, 64, 100, 777, 5000}) {
    for (Draw draw : kDraws) {
      std::vector<float> results(20), wanted(20);
      const std::vector<float> logits = numbers.values(size);
      in_two_threads(20, [&](std::int64_t begin, std::int64_t end) {
        DrawScratch scratch;
        Draw own = draw;
        std::vector<std::int64_t> ids(logits.size());
        std::iota(ids.begin(), ids.end(), size);
        for (std::int64_t i = begin; i < end; ++i) {
          own.uniform = static_cast<double>(i) / 20.3;
          own.token_ids = i % 2 == 0 ? nullptr : ids.data();
          const auto place = static_cast<std::size_t>(i);
          results[place] = static_cast<float>(
              skipdec::drawing(set).draw_token(own, logits.data(), size, scratch));
          wanted[place] = static_cast<float>(expected(own, logits));
        }
      });
      outcome.add(results, wanted, 0);
    }
    const std::vector<float> logits = numbers.values(size);
    const float best = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit - best));
    const Draw greedy{1.0F, kNone, 0, 1, -1, nullptr};
    DrawScratch scratch;
    const std::int64_t first =
        skipdec::drawing(set).draw_token(greedy, logits.data(), size, scratch);
    const auto wanted = std::find(logits.begin(), logits.end(), best) - logits.begin();
    outcome.add({static_cast<float>(first)}, {static_cast<float>(wanted)}, 0);
    const double sum = skipdec::drawing(set).sum_weights(logits.data(), size, best);
    outcome.add({static_cast<float>(sum)}, {static_cast<float>(total)},
                static_cast<float>(total * 1e-6));
  }
  return outcome;
}

}  // namespace skipdec::tests
