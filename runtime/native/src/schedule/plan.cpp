#include "schedule/plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "schedule/fractions.h"

namespace skipdec::runtime {
namespace {

// Calls ``found`` with token 0 and with each token whose budget differs from that of the token
// before it. Except in tables, decays never rise, so tokens between two of equal budget have that
// budget.
void each_change(const ScheduleRule& rule,
                 const std::function<void(std::int64_t index, std::int64_t budget)>& found) {
  const auto budget_of = [&rule](std::int64_t index) {
    return index < rule.horizon ? rule.decay->budget(rule, index) : rule.min_exit_layer;
  };
  const bool may_rise = rule.decay->name == "table";
  std::int64_t index = 0;
  for (std::int64_t budget = budget_of(0);; budget = budget_of(index)) {
    found(index, budget);
    if (may_rise) {
      do {
        if (++index > rule.horizon) return;
      } while (budget_of(index) == budget);
      continue;
    }
    std::int64_t high = rule.horizon;  // the last token of ``budget`` is before it
    if (budget_of(high) == budget) return;
    while (high - index > 1) {
      const std::int64_t middle = (index + high) / 2;
      (budget_of(middle) == budget ? index : high) = middle;
    }
    index = high;
  }
}

// Returns the rule for how much of a prompt runs each layer.
PromptRule prompt_of(const ScheduleRule& rule) {
  PromptRule prompt;
  if (rule.prompt == "full" || rule.max_exit_layer == rule.num_layers) return prompt;
  prompt.denominator = 2 * (rule.num_layers - rule.max_exit_layer);
  prompt.numerators.assign(static_cast<std::size_t>(rule.num_layers), 1);
  for (std::int64_t budget = rule.num_layers; budget >= rule.max_exit_layer; --budget) {
    const std::int64_t numerator =
        budget == rule.max_exit_layer ? PromptRule::kAll : 2 * (rule.num_layers - budget) + 1;
    for (const std::int64_t layer : rule.placement->layers(rule, budget))
      prompt.numerators[static_cast<std::size_t>(layer)] = numerator;
  }
  return prompt;
}

bool holds(const LayerPlan& before, const LayerPlan& after) {
  return std::includes(before.begin(), before.end(), after.begin(), after.end());
}

// Refuses a prompt token that runs a layer that the token before it did not.
void check_prompt(const ScheduleRule& rule, const Document& document) {
  if (rule.prompt == "full") return;
  LayerPlan before = rule.placement->layers(rule, rule.num_layers);
  for (std::int64_t budget = rule.num_layers - 1; budget >= rule.max_exit_layer; --budget) {
    LayerPlan layers = rule.placement->layers(rule, budget);
    if (!holds(before, layers))
      document.refuse("schedule", "has a prompt token of budget " + std::to_string(budget) +
                                      " that runs layers which the one before it did not");
    before = std::move(layers);
  }
}

}  // namespace

SchedulePointer schedule_of(const ScheduleRule& rule, const Document& document) {
  check_prompt(rule, document);
  std::vector<Segment> segments;
  each_change(rule, [&](std::int64_t index, std::int64_t budget) {
    LayerPlan layers = rule.placement->layers(rule, budget);
    if (!segments.empty() && !holds(segments.back().layers, layers))
      document.refuse("schedule", "has a generated token, " + std::to_string(index) +
                                      ", that runs layers which the one before it did not: a "
                                      "hole in their KV cache");
    segments.push_back({index, std::move(layers)});
  });
  return std::make_shared<Schedule>(rule.num_layers, std::move(segments), prompt_of(rule),
                                    text_of(rule));
}

std::map<std::string, ScheduleRule> preset_rules(std::int64_t num_layers) {
  std::map<std::string, ScheduleRule> rules{{"full", full_rule(num_layers)}};
  for (std::int64_t speedup = 1; speedup <= num_layers; ++speedup) {
    ScheduleRule rule;  // budgets for a speed-up (runtime/schedule/presets)
    rule.num_layers = num_layers;
    rule.min_exit_layer = 2 * round_half_up(num_layers, 3 * speedup);
    rule.max_exit_layer = round_half_up(2 * num_layers, speedup) - rule.min_exit_layer;
    if (1 < rule.min_exit_layer && rule.min_exit_layer <= rule.max_exit_layer &&
        rule.max_exit_layer <= num_layers)
      rules.emplace(std::to_string(speedup) + "x", std::move(rule));
  }
  return rules;
}

}  // namespace skipdec::runtime
