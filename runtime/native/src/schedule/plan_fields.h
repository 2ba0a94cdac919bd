// Plans and presets of schedule.json, read from its JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "json/fields.h"
#include "schedule/schedules.h"

namespace skipdec::runtime {

constexpr std::string_view kHorizonPlaceholder = "{horizon}";  // in a preset's text

// A schedule and the horizon that presets take from it, which a constant schedule does not have.
struct PlanEntry {
  SchedulePointer schedule;
  std::optional<std::int64_t> horizon;
};

PlanEntry plan_of(const nlohmann::json& value, std::int64_t num_layers, const Document& document);

Preset preset_of(const nlohmann::json& value, const std::string& name, std::int64_t num_layers,
                 const Document& document);

// Makes the schedule of a preset; if several segments begin at one token, the last one counts.
SchedulePointer schedule_of(const Preset& preset, std::int64_t horizon, std::int64_t num_layers);

}  // namespace skipdec::runtime
