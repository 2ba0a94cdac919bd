// Placements: the layers that a budget runs (runtime/schedule/placements).
#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <vector>

#include "schedule/fractions.h"
#include "schedule/rule.h"

namespace skipdec::runtime {
namespace {

// Appends first ... stop - 1 to ``layers``.
void append(LayerPlan& layers, std::int64_t first, std::int64_t stop) {
  for (std::int64_t layer = first; layer < stop; ++layer) layers.push_back(layer);
}

LayerPlan top(const ScheduleRule& rule, std::int64_t budget) {
  LayerPlan layers;
  append(layers, 0, rule.warmup_layers);
  append(layers, rule.num_layers - (budget - rule.warmup_layers), rule.num_layers);
  return layers;
}

LayerPlan bottom(const ScheduleRule& /*rule*/, std::int64_t budget) {
  LayerPlan layers;
  append(layers, 0, budget);
  return layers;
}

LayerPlan unified(const ScheduleRule& rule, std::int64_t budget) {
  const std::int64_t lowest = std::max<std::int64_t>(rule.warmup_layers, 1);
  const std::int64_t steps = budget - lowest, span = rule.num_layers - lowest;
  LayerPlan layers;
  append(layers, 0, lowest);
  for (std::int64_t step = 1; step <= steps; ++step)
    layers.push_back(lowest - 1 + round_half_up(step * span, steps));
  return layers;
}

// Repeatedly adds the middle layer (the lower of two) of the widest gap (the highest if equal).
LayerPlan unified_nested(const ScheduleRule& rule, std::int64_t budget) {
  std::set<std::int64_t> chosen{rule.num_layers - 1};
  const std::int64_t lowest = std::max<std::int64_t>(rule.warmup_layers, 1);
  for (std::int64_t layer = 0; layer < lowest; ++layer) chosen.insert(layer);
  std::set<std::array<std::int64_t, 3>> gaps;  // width, low, high
  const auto add = [&gaps](std::int64_t low, std::int64_t high) {
    if (high - low > 1) gaps.insert({high - low, low, high});
  };
  add(lowest - 1, rule.num_layers - 1);
  while (static_cast<std::int64_t>(chosen.size()) < budget) {
    const auto [width, low, high] = *gaps.rbegin();
    gaps.erase(std::prev(gaps.end()));
    const std::int64_t middle = (low + high) / 2;
    chosen.insert(middle);
    add(low, middle);
    add(middle, high);
  }
  return {chosen.begin(), chosen.end()};
}

// Returns how often 2 divides ``distance``; for 0 the largest number.
std::int64_t level_of(std::int64_t distance) {
  if (distance == 0) return INT64_MAX;
  std::int64_t level = 0;
  for (; distance % 2 == 0; distance /= 2) ++level;
  return level;
}

LayerPlan hierarchical(const ScheduleRule& rule, std::int64_t budget) {
  LayerPlan others;
  append(others, rule.warmup_layers, rule.num_layers);
  const auto rank = [&rule](std::int64_t layer) {
    return std::pair(level_of(rule.num_layers - 1 - layer), layer);
  };
  std::sort(others.begin(), others.end(),
            [&](std::int64_t left, std::int64_t right) { return rank(left) > rank(right); });
  LayerPlan layers;
  append(layers, 0, rule.warmup_layers);
  layers.insert(layers.end(), others.begin(), others.begin() + (budget - rule.warmup_layers));
  std::sort(layers.begin(), layers.end());
  return layers;
}

LayerPlan d3_layers(const ScheduleRule& rule, std::int64_t budget) {
  const auto tail = rule.parameters["tail"].get<std::int64_t>();
  const std::int64_t start = rule.warmup_layers + floor_of(budget - rule.warmup_layers - tail, 2);
  LayerPlan layers;
  append(layers, 0, start);
  append(layers, start + rule.num_layers - budget, rule.num_layers);
  return layers;
}

}  // namespace

const std::vector<Placement>& placements() {
  static const std::vector<Placement> all{{"top", nullptr, top},
                                          {"bottom", nullptr, bottom},
                                          {"unified", nullptr, unified},
                                          {"unified-nested", nullptr, unified_nested},
                                          {"hierarchical", nullptr, hierarchical},
                                          {"d3", "tail", d3_layers}};
  return all;
}

}  // namespace skipdec::runtime
