// The rule of a schedule: budgets by a decay, layers by a placement.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "json/fields.h"
#include "schedule/schedule.h"

namespace skipdec::runtime {

struct ScheduleRule;

// Returns the number of layers that generated token ``index`` runs, 0 <= index < horizon. Equals
// runtime/schedule/decays: exact fractions, rounded half up.
struct Decay {
  std::string_view name;
  const char* parameter;  // nullptr: none
  std::int64_t (*budget)(const ScheduleRule& rule, std::int64_t index);
};

// Returns the ``budget`` layers that run, lowest first; equals runtime/schedule/placements.
struct Placement {
  std::string_view name;
  const char* parameter;  // nullptr: none
  LayerPlan (*layers)(const ScheduleRule& rule, std::int64_t budget);
};

// Return all decays and placements, the default first.
const std::vector<Decay>& decays();
const std::vector<Placement>& placements();

// The checked value of "schedule" in schedule.json (docs/concepts/schedules.md).
struct ScheduleRule {
  std::int64_t num_layers = 0, max_exit_layer = 0, min_exit_layer = 0, warmup_layers = 1;
  std::int64_t horizon = 0;
  const Decay* decay = &decays().front();
  const Placement* placement = &placements().front();
  std::string prompt = "full";
  nlohmann::json parameters = nlohmann::json::object();  // by name, for decay and placement

  std::int64_t fall() const { return max_exit_layer - min_exit_layer; }
  bool is_constant() const { return decay->name == "constant"; }
  // Returns true if the horizon follows from other parameters: that of a table, or the first token
  // at which the decay d3 reaches its smallest budget.
  bool implies_horizon() const;
};

// Reads and checks a rule: fields, names, parameters and bounds. Throws an error of ``document``.
ScheduleRule rule_of(const nlohmann::json& value, const Document& document);

// Returns the rule that runs all layers for every token.
ScheduleRule full_rule(std::int64_t num_layers);

// Returns the text form: "linear:max=16,min=8,warmup=1,horizon=64".
std::string text_of(const ScheduleRule& rule);

}  // namespace skipdec::runtime
