#include "scheduling/drafting/chain.h"

#include <algorithm>

namespace skipdec::runtime {

void Chain::add(std::size_t source, const Guesses& guesses, const std::vector<double>& chances) {
  if (guesses.tokens.empty()) return;
  links_.push_back({source, guesses, chances});
  tokens_.insert(tokens_.end(), guesses.tokens.begin(), guesses.tokens.end());
}

void Chain::shorten(std::size_t count) {
  tokens_.resize(std::min(count, tokens_.size()));
  for (Link& link : links_) {
    link.guesses.shorten(count);
    link.chances.resize(link.guesses.tokens.size());
    count -= link.guesses.tokens.size();
  }
  while (!links_.empty() && links_.back().guesses.tokens.empty()) links_.pop_back();
}

std::vector<double> Chain::chances() const {
  std::vector<double> chances;
  for (const Link& link : links_) {
    const double before = chances.empty() ? 1 : chances.back();
    for (const double chance : link.chances) chances.push_back(before * chance);
  }
  return chances;
}

void Chain::each_result(std::size_t checked, std::size_t held, const Count& count) const {
  for (const Link& link : links_) {
    const std::size_t own = std::min(checked, link.guesses.tokens.size());
    if (own == 0) return;
    const std::size_t own_held = std::min(held, own);
    count(link.source, link.guesses.evidence, own, own_held);
    checked -= own;
    held -= own_held;
  }
}

}  // namespace skipdec::runtime
