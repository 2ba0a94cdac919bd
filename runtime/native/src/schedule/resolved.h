// Documents that schedule.json must hold beside the rule.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "json/fields.h"
#include "schedule/rule.h"

namespace skipdec::runtime {

// Returns the JSON of the rule's plan (docs/bundle-format.md). Throws an error of ``document`` if a
// token would run a layer that the token before it bypasses, and for a plan of too many layers.
nlohmann::json plan_document(const Rule& rule, const Document& document);

// Returns the JSON of all presets that fit a model of ``num_layers``, by name.
nlohmann::json preset_documents(std::int64_t num_layers);

}  // namespace skipdec::runtime
