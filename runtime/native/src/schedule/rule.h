// The rule that a plan is made of: budgets by a decay, layers by a placement.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "json/fields.h"
#include "schedule/schedule.h"

namespace skipdec::runtime {

// The checked value of "schedule" in schedule.json (docs/concepts/schedules.md).
struct Rule {
  std::int64_t num_layers = 0, max_exit_layer = 0, min_exit_layer = 0, warmup_layers = 1;
  std::int64_t horizon = 0;
  std::string decay = "linear", placement = "top", prompt = "full";
  nlohmann::json parameters = nlohmann::json::object();  // by name, for decay and placement

  std::int64_t fall() const { return max_exit_layer - min_exit_layer; }
  // The fewest layers that the placement can choose.
  std::int64_t least_budget() const;
};

// Reads and checks a rule: fields, names, parameters and bounds. Throws, by ``document``.
Rule rule_of(const nlohmann::json& value, const Document& document);

// Returns the number of layers that generated token ``index`` runs, 0 <= index < horizon. Equals
// runtime/schedule/decays: exact fractions, rounded half up.
std::int64_t budget_of(const Rule& rule, std::int64_t index);

// Returns the ``budget`` layers that run, lowest first; equals runtime/schedule/placements.
LayerPlan layers_of(const Rule& rule, std::int64_t budget);

}  // namespace skipdec::runtime
