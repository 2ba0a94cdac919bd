#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "families.h"
#include "sampling/draw.h"

namespace skipdec::tests {
namespace {

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
  double passed = 0;
  for (std::size_t token = 0; token < weights.size(); ++token) {
    passed += weights[token];
    if (passed > draw.uniform * above) return static_cast<std::int64_t>(token);
  }
  return -1;
}

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr Draw kDraws[] = {
    {1.25F, kNone, 0, 1, 0},    {1.25F, kNone, 0, 0.95, 0}, {0.5F, kNone, 0, 0.31, 0},
    {1.0F, kNone, 5, 1, 0},     {1.0F, kNone, 40, 0.9, 0},  {4.0F, -1.5F, 0, 1, 0},
    {0.75F, -3.0F, 70, 0.8, 0},
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
        for (std::int64_t i = begin; i < end; ++i) {
          own.uniform = static_cast<double>(i) / 19.7;
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
    const double sum = skipdec::drawing(set).sum_weights(logits.data(), size, best);
    outcome.add({static_cast<float>(sum)}, {static_cast<float>(total)},
                static_cast<float>(total * 1e-6));
  }
  return outcome;
}

}  // namespace skipdec::tests
