// Plans: what a rule, or a preset, stands for.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "json/fields.h"
#include "schedule/rule.h"

namespace skipdec::runtime {

// Returns the schedule of ``rule``. Throws an error of ``document`` if a token would run a layer
// that the token before it bypasses, and for plans of too many layers.
SchedulePointer schedule_of(const ScheduleRule& rule, const Document& document);

// Returns the JSON of the rule's plan, as schedule.json holds it (docs/bundle-format.md).
nlohmann::json plan_document(const ScheduleRule& rule, const Schedule& schedule);

// Returns "full" and the presets that fit a model of ``num_layers``, by name; the horizon of those
// that fall is one token a budget.
std::map<std::string, ScheduleRule> preset_rules(std::int64_t num_layers);

// Returns the JSON of presets, as schedule.json holds it.
nlohmann::json preset_documents(const std::map<std::string, ScheduleRule>& rules);

}  // namespace skipdec::runtime
