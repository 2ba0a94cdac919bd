#include "tokens/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tokens/drawing.h"

namespace skipdec::runtime {
namespace {

// Returns log Σ e^logit.
double log_total(const float* logits, std::int64_t size, const std::string& subject) {
  const Drawer& drawer = Drawer::greedy();
  const std::int64_t index = drawer.draw(logits, size, 0);
  if (index < 0) throw not_finite(logits, size, subject);
  const float best = logits[index];
  return static_cast<double>(best) + std::log(drawer.sum_weights(logits, size, best));
}

// Returns the ``count`` best tokens by rank.
std::vector<std::int64_t> best_tokens(const float* logits, std::int64_t size, std::int64_t count) {
  const auto is_better = [logits](std::int64_t a, std::int64_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  std::vector<std::int64_t> best;  // a heap with the worst at its front
  if (count <= 0) return best;
  best.reserve(static_cast<std::size_t>(count));
  std::int64_t id = 0;
  for (; id < count; ++id) best.push_back(id);
  std::make_heap(best.begin(), best.end(), is_better);
  for (; id < size; ++id) {
    if (!(logits[id] > logits[best.front()])) continue;
    std::pop_heap(best.begin(), best.end(), is_better);
    best.back() = id;
    std::push_heap(best.begin(), best.end(), is_better);
  }
  std::sort_heap(best.begin(), best.end(), is_better);
  return best;
}

std::int64_t num_above(const float* logits, std::int64_t size, float border) {
  return std::count_if(logits, logits + size, [border](float logit) { return logit > border; });
}

}  // namespace

double probability_of(const float* logits, std::int64_t size, std::int64_t index) {
  const Drawer& drawer = Drawer::greedy();
  const std::int64_t best = drawer.draw(logits, size, 0);
  if (best < 0) return std::numeric_limits<double>::quiet_NaN();
  const double weight = std::exp(static_cast<double>(logits[index]) - logits[best]);
  return weight / drawer.sum_weights(logits, size, logits[best]);
}

std::vector<Logprob> row_logprobs(const float* logits, std::int64_t size, std::int64_t token_id,
                                  std::int64_t count, const std::string& subject) {
  const double total = log_total(logits, size, subject);
  const auto logprob = [&](std::int64_t id, std::int64_t rank) {
    return Logprob{id, static_cast<double>(logits[id]) - total, rank};
  };
  std::vector<Logprob> found{logprob(token_id, 0)};
  found.reserve(static_cast<std::size_t>(count) + 1);
  std::int64_t rank = 0;
  for (const std::int64_t id : best_tokens(logits, size, count)) {
    ++rank;
    if (id == token_id) {
      found.front().rank = rank;
    } else {
      found.push_back(logprob(id, rank));
    }
  }
  if (found.front().rank == 0) found.front().rank = num_above(logits, size, logits[token_id]) + 1;
  return found;
}

double chosen_logprob(const float* logits, std::int64_t size, std::int64_t token_id,
                      const std::string& subject) {
  return static_cast<double>(logits[token_id]) - log_total(logits, size, subject);
}

Error not_finite(const float* logits, std::int64_t size, const std::string& subject) {
  const auto problem = [&](const char* name, auto is_it) {
    const float* const end = logits + size;
    const auto first = std::find_if(logits, end, is_it) - logits;
    if (first == size) return std::string();
    return std::to_string(std::count_if(logits, end, is_it)) + " of " + std::to_string(size) +
           " are " + name + ", the first at token id " + std::to_string(first) +
           "; the engines computed no valid distribution: run `skipdec verify` on the bundle, or "
           "export it as float32";
  };
  std::string text = problem("NaN", [](float logit) { return std::isnan(logit); });
  if (text.empty()) {
    text = problem("+inf", [](float logit) { return std::isinf(logit) && logit > 0; });
  }
  if (text.empty()) text = "no token can be chosen: all are -inf or stop tokens";
  return {Status::kEngine, subject, text};
}

}  // namespace skipdec::runtime
