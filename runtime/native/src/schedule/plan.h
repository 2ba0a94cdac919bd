// Plans: the layers that a rule or a preset runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "json/fields.h"
#include "schedule/rule.h"

namespace skipdec::runtime {

// Returns the schedule of ``rule``. Throws an error of ``document`` if a token would run a layer
// that the token before it bypasses.
SchedulePointer schedule_of(const ScheduleRule& rule, const Document& document);

// Returns "full" and the presets that fit a model of ``num_layers``, by name. The presets have no
// horizon yet.
std::map<std::string, ScheduleRule> preset_rules(std::int64_t num_layers);

}  // namespace skipdec::runtime
