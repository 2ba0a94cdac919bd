#include "schedule/resolved.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "constants.h"
#include "json/canonical.h"
#include "schedule/fractions.h"
#include "schedule/plan_fields.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

// The rule as people write it: "linear:max=16,min=8,warmup=1,horizon=64".
std::string text_of(const Rule& rule) {
  const bool is_full = rule.decay == "constant" && rule.placement == "top" &&
                       rule.prompt == "full" && rule.min_exit_layer == rule.num_layers &&
                       rule.warmup_layers == 0 && rule.horizon == 1;
  if (is_full) return "full";
  std::string text = rule.decay + ":max=" + std::to_string(rule.max_exit_layer) +
                     ",min=" + std::to_string(rule.min_exit_layer) +
                     ",warmup=" + std::to_string(rule.warmup_layers) +
                     ",horizon=" + std::to_string(rule.horizon);
  if (rule.placement != "top") text += ",placement=" + rule.placement;
  const auto add = [&](const std::string& name, const json& value) {
    std::string written;
    for (const json& each : value.is_array() ? value : json::array({value}))
      written += (written.empty() ? "" : "/") + number_text(each);
    text.append(",").append(name).append("=").append(written);
  };
  for (const auto& parameter : rule.parameters.items())  // the decay's is before the placement's
    if (parameter.key() != "tail") add(parameter.key(), parameter.value());
  if (rule.parameters.contains("tail")) add("tail", rule.parameters["tail"]);
  return rule.prompt == "full" ? text : text + ",prompt=" + rule.prompt;
}

// The layers of each budget, computed once.
class Plans {
 public:
  explicit Plans(const Rule& rule) : rule_(rule) {}

  const LayerPlan& of(std::int64_t budget) {
    const auto [entry, is_new] = plans_.try_emplace(budget);
    if (is_new) entry->second = layers_of(rule_, budget);
    return entry->second;
  }

 private:
  const Rule& rule_;
  std::map<std::int64_t, LayerPlan> plans_;
};

json segments_of(const Rule& rule, Plans& plans, const Document& document) {
  json segments = json::array();
  std::size_t entries = 0;
  std::optional<std::int64_t> before;
  for (std::int64_t index = 0; index <= rule.horizon; ++index) {
    const std::int64_t budget =
        index == rule.horizon ? rule.min_exit_layer : budget_of(rule, index);
    if (budget == before) continue;
    before = budget;
    const LayerPlan& layers = plans.of(budget);
    entries += layers.size();
    if (entries > constants::kMaxPlanEntries)
      document.refuse("schedule", "has plans of more than " +
                                      std::to_string(constants::kMaxPlanEntries) +
                                      " layers altogether; choose one that falls in fewer steps");
    segments.push_back({{"layers", layers}, {"start", index}});
  }
  return segments;
}

// For each layer, which part of a prompt runs it; null where all of it runs all layers.
json prompt_of(const Rule& rule, Plans& plans, const Document& document) {
  if (rule.prompt == "full" || rule.max_exit_layer == rule.num_layers) return nullptr;
  std::vector<std::int64_t> needed(static_cast<std::size_t>(rule.num_layers), rule.num_layers);
  for (std::int64_t budget = rule.num_layers; budget >= rule.max_exit_layer; --budget) {
    const LayerPlan& layers = plans.of(budget);
    const LayerPlan& before = plans.of(std::min(budget + 1, rule.num_layers));
    if (!std::includes(before.begin(), before.end(), layers.begin(), layers.end()))
      document.refuse("schedule", "has a prompt token of budget " + std::to_string(budget) +
                                      " that runs layers which the one before it did not");
    for (const std::int64_t layer : layers) needed[static_cast<std::size_t>(layer)] = budget;
  }
  json numerators = json::array();
  for (const std::int64_t budget : needed)
    numerators.push_back(budget == rule.max_exit_layer ? json(nullptr)
                                                       : json(2 * (rule.num_layers - budget) + 1));
  return {{"denominator", 2 * (rule.num_layers - rule.max_exit_layer)},
          {"numerators", std::move(numerators)}};
}

// "2x" and others: budgets for a speed-up, from the number of layers alone (presets.py).
std::optional<Rule> preset_rule(std::int64_t speedup, std::int64_t num_layers) {
  Rule rule;
  rule.num_layers = num_layers;
  rule.min_exit_layer = 2 * round_half_up(num_layers, 3 * speedup);
  rule.max_exit_layer = round_half_up(2 * num_layers, speedup) - rule.min_exit_layer;
  rule.horizon = std::max<std::int64_t>(1, rule.fall() + 1);  // one token a budget
  const bool fits = 1 < rule.min_exit_layer && rule.min_exit_layer <= rule.max_exit_layer &&
                    rule.max_exit_layer <= num_layers;
  return fits ? std::optional(std::move(rule)) : std::nullopt;
}

// Each budget from the largest down, and after which part of the horizon it begins.
json preset_document(const Rule& rule) {
  json segments = json::array();
  for (std::int64_t step = 0; step <= rule.fall(); ++step) {
    json segment{{"layers", layers_of(rule, rule.max_exit_layer - step)}};
    if (step == 0) {
      segment["start"] = 0;
    } else {
      segment["after"] = {2 * step - 1, 2 * rule.fall()};
    }
    segments.push_back(std::move(segment));
  }
  std::string text = text_of(rule);
  const std::size_t digits = text.rfind('=') + 1;
  text.replace(digits, text.size() - digits, kHorizonPlaceholder);
  return {{"prompt", nullptr}, {"segments", std::move(segments)}, {"text", std::move(text)}};
}

}  // namespace

json plan_document(const Rule& rule, const Document& document) {
  Plans plans(rule);
  return {{"horizon", rule.decay == "constant" ? json(nullptr) : json(rule.horizon)},
          {"num_layers", rule.num_layers},
          {"prompt", prompt_of(rule, plans, document)},
          {"segments", segments_of(rule, plans, document)},
          {"text", text_of(rule)}};
}

json preset_documents(std::int64_t num_layers) {
  LayerPlan all;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) all.push_back(layer);
  const json whole = {{"layers", std::move(all)}, {"start", 0}};
  json presets{
      {"full", {{"prompt", nullptr}, {"segments", json::array({whole})}, {"text", "full"}}}};
  if (num_layers > constants::kMaxPresetLayers) return presets;
  for (std::int64_t speedup = 1; speedup <= num_layers; ++speedup)
    if (const std::optional<Rule> rule = preset_rule(speedup, num_layers))
      presets[std::to_string(speedup) + "x"] = preset_document(*rule);
  return presets;
}

}  // namespace skipdec::runtime
