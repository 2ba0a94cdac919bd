#include "schedule/plan_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "constants.h"
#include "errors.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kMostSegments = static_cast<std::size_t>(constants::kMaxHorizon) + 1;

LayerPlan layers_of(Fields& fields, std::int64_t num_layers, const Document& document) {
  LayerPlan layers;
  const json& array = fields.array("layers", static_cast<std::size_t>(num_layers));
  layers.reserve(array.size());
  for (const json& layer : array)
    layers.push_back(integer_of(layer, fields.place_of("layers"), 0, num_layers - 1, document));
  return layers;
}

PromptRule prompt_of(const json& value, std::int64_t num_layers, const Document& document) {
  Fields fields(value, "plan.prompt", document);
  PromptRule prompt;
  prompt.denominator = fields.integer("denominator", 1, PromptRule::kMost);
  for (const json& each : fields.array("numerators", static_cast<std::size_t>(num_layers)))
    prompt.numerators.push_back(each.is_null() ? PromptRule::kAll
                                               : integer_of(each, fields.place_of("numerators"), 0,
                                                            PromptRule::kMost, document));
  if (static_cast<std::int64_t>(prompt.numerators.size()) != num_layers)
    fields.refuse("numerators", "are " + std::to_string(prompt.numerators.size()) +
                                    "; expected: " + std::to_string(num_layers));
  fields.require_no_others();
  return prompt;
}

// Returns the result of ``build``; its errors become errors of the document.
template <class Build>
SchedulePointer checked(const std::string& place, const Document& document, const Build& build) {
  try {
    return build();
  } catch (const Error& error) {
    const std::string words = error.what();
    const std::size_t behind = words.find(" | ");
    document.refuse(place, words.substr(behind == std::string::npos ? 0 : behind + 3));
  }
}

}  // namespace

PlanEntry plan_of(const json& value, std::int64_t num_layers, const Document& document) {
  Fields fields(value, "plan", document);
  const std::int64_t depth = fields.integer("num_layers", 1, constants::kMaxLayers);
  if (depth != num_layers)
    fields.refuse("num_layers",
                  "is " + std::to_string(depth) + "; the bundle has " + std::to_string(num_layers));
  PlanEntry entry;
  entry.horizon = fields.optional_integer("horizon", 1, constants::kMaxHorizon);
  PromptRule prompt;
  if (const json* rule = fields.find("prompt")) prompt = prompt_of(*rule, num_layers, document);
  std::vector<Segment> segments;
  for (const json& each : fields.array("segments", kMostSegments)) {
    Fields segment(each, "plan.segments." + std::to_string(segments.size()), document);
    const std::int64_t start = segment.integer("start", 0, constants::kMaxHorizon);
    segments.push_back({start, layers_of(segment, num_layers, document)});
    segment.require_no_others();
  }
  std::string text = fields.text("text");
  fields.require_no_others();
  entry.schedule = checked("plan", document, [&] {
    return std::make_shared<Schedule>(num_layers, std::move(segments), std::move(prompt),
                                      std::move(text));
  });
  return entry;
}

Preset preset_of(const json& value, const std::string& name, std::int64_t num_layers,
                 const Document& document) {
  const std::string place = "presets." + name;
  Fields fields(value, place, document);
  Preset preset;
  preset.text = fields.text("text");
  if (fields.find("prompt") != nullptr) fields.refuse("prompt", "is not null");
  for (const json& each : fields.array("segments", kMostSegments)) {
    Fields entry(each, place + ".segments." + std::to_string(preset.segments.size()), document);
    PresetSegment segment;
    segment.layers = layers_of(entry, num_layers, document);
    if (preset.segments.empty()) {
      entry.integer("start", 0, 0);
    } else {
      const json& after = entry.array("after", 2);
      if (after.size() != 2) entry.refuse("after", "has not two numbers");
      segment.after_numerator =
          integer_of(after[0], entry.place_of("after"), 0, PromptRule::kMost, document);
      segment.after_denominator = integer_of(after[1], entry.place_of("after"),
                                             std::max<std::int64_t>(1, segment.after_numerator),
                                             PromptRule::kMost, document);
      const PresetSegment& before = preset.segments.back();
      if (before.after_denominator != 0 && segment.after_numerator * before.after_denominator <
                                               before.after_numerator * segment.after_denominator)
        entry.refuse("after", "is less than that of the segment before");
    }
    entry.require_no_others();
    preset.segments.push_back(std::move(segment));
  }
  fields.require_no_others();
  checked(place, document, [&] {  // as if all began at tokens of their own: some horizon's may
    std::vector<Segment> all;
    all.reserve(preset.segments.size());
    for (const PresetSegment& each : preset.segments)
      all.push_back({static_cast<std::int64_t>(all.size()), each.layers});
    return std::make_shared<Schedule>(num_layers, std::move(all), PromptRule{}, "");
  });
  return preset;
}

SchedulePointer schedule_of(const Preset& preset, std::int64_t horizon, std::int64_t num_layers) {
  if (horizon < 1 || horizon > constants::kMaxHorizon)
    throw Error(Status::kSchedule, "exit schedule",
                "horizon is " + std::to_string(horizon) +
                    "; allowed: " + range_text(1, constants::kMaxHorizon));
  std::vector<Segment> segments;
  for (const PresetSegment& each : preset.segments) {
    const std::int64_t last = std::max<std::int64_t>(1, horizon - 1);
    const std::int64_t start =
        each.after_denominator == 0 ? 0 : each.after_numerator * last / each.after_denominator + 1;
    if (segments.empty() || segments.back().start != start)
      segments.push_back({start, each.layers});
    else
      segments.back().layers = each.layers;
  }
  std::string text = preset.text;
  const std::size_t place = text.find(kHorizonPlaceholder);
  if (place != std::string::npos)
    text.replace(place, kHorizonPlaceholder.size(), std::to_string(horizon));
  return std::make_shared<Schedule>(num_layers, std::move(segments), PromptRule{}, std::move(text));
}

}  // namespace skipdec::runtime
