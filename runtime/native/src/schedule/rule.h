// The rule that a plan is made of: budgets by a decay, layers by a placement.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "json/fields.h"
#include "schedule/schedule.h"

namespace skipdec::runtime {

// What schedule.json holds under "schedule" (docs/schedules.md), whole and checked.
struct Rule {
  std::int64_t num_layers = 0, max_exit_layer = 0, min_exit_layer = 0, warmup_layers = 1;
  std::int64_t horizon = 0;
  std::string decay = "linear", placement = "top", prompt = "full";
  nlohmann::json parameters = nlohmann::json::object();  // of decay and placement, by name

  std::int64_t fall() const { return max_exit_layer - min_exit_layer; }
};

// Reads and checks a rule: fields, names, parameters and bounds. Throws, by ``document``.
Rule rule_of(const nlohmann::json& value, const Document& document);

// How many layers generated token ``index`` runs, 0 <= index < horizon; the numbers are those of
// runtime/schedule/decays, exact fractions rounded half up.
std::int64_t budget_of(const Rule& rule, std::int64_t index);

// The ``budget`` layers that run, lowest first; those of runtime/schedule/placements.
LayerPlan layers_of(const Rule& rule, std::int64_t budget);

}  // namespace skipdec::runtime
