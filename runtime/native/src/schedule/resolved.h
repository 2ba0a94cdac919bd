// What schedule.json holds beside the rule, and must.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "json/fields.h"
#include "schedule/rule.h"

namespace skipdec::runtime {

// The JSON of the rule's plan (docs/bundle-format.md). Throws, by ``document``, where tokens would
// run layers that the one before did not, and for a plan of too many layers.
nlohmann::json plan_document(const Rule& rule, const Document& document);

// The JSON of all presets that fit a model of ``num_layers``, by name.
nlohmann::json preset_documents(std::int64_t num_layers);

}  // namespace skipdec::runtime
