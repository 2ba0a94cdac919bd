#include "schedule/rule.h"

#include <algorithm>
#include <utility>

#include "constants.h"
#include "json/canonical.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

// Reads a rule: its bounds, and exactly the parameters of its decay and placement.
class RuleReader {
 public:
  RuleReader(const json& value, const Document& document)
      : fields_(value, "schedule", document), document_(document) {}

  ScheduleRule read() {
    rule_.num_layers = fields_.integer("num_layers", 1, constants::kMaxLayers);
    rule_.max_exit_layer = fields_.integer("max_exit_layer", 1, rule_.num_layers);
    rule_.min_exit_layer = fields_.integer("min_exit_layer", 1, rule_.max_exit_layer);
    rule_.warmup_layers =
        fields_.integer("warmup_layers", 0, rule_.num_layers, rule_.warmup_layers);
    rule_.horizon = fields_.integer("horizon", 1, constants::kMaxHorizon);
    rule_.prompt = fields_.text("prompt", rule_.prompt);
    if (rule_.prompt != "full" && rule_.prompt != "decay") unknown("prompt", "full, decay");
    choose("decay", decays(), rule_.decay);
    choose("placement", placements(), rule_.placement);
    fields_.require_no_others();
    check_decay();
    check_placement();
    return std::move(rule_);
  }

 private:
  [[noreturn]] void unknown(const char* name, const std::string& allowed) {
    fields_.refuse(name, "is " + shown(fields_.value(name)) + "; allowed: " + allowed);
  }

  template <class Named>
  void choose(const char* kind, const std::vector<Named>& all, const Named*& chosen) {
    const std::string name = fields_.text(kind, std::string(chosen->name));
    for (const Named& each : all)
      if (each.name == name) chosen = &each;
    if (chosen->name != name)
      unknown(kind, joined(all, [](const Named& each) { return each.name; }));
    for (const Named& each : all) {
      if (each.parameter == nullptr) continue;
      const json* found = fields_.find(each.parameter);
      if (&each == chosen)
        rule_.parameters[each.parameter] = fields_.value(each.parameter);
      else if (found != nullptr)
        fields_.refuse(each.parameter,
                       "is " + shown(*found) + "; " + std::string(chosen->name) + " has none");
    }
  }

  // Checks a finite number above 0.
  void check_positive(const char* name) {
    const json& value = rule_.parameters[name];
    if (!value.is_number() || !(value.get<double>() > 0)) unknown(name, "a finite number above 0");
  }

  void check_decay() {
    const std::string_view decay = rule_.decay->name;
    if (decay == "power" || decay == "exponential") check_positive(rule_.decay->parameter);
    if (decay == "step")
      integer_of(rule_.parameters["steps"], "schedule.steps", 2, rule_.horizon, document_);
    if (decay == "constant" && rule_.fall() != 0)
      fields_.refuse("min_exit_layer", "is " + std::to_string(rule_.min_exit_layer) +
                                           "; allowed with decay constant: max_exit_layer, " +
                                           std::to_string(rule_.max_exit_layer));
    if (decay == "table") check_table();
    if (decay == "d3") {
      const json& alpha = rule_.parameters["alpha"];
      if (!alpha.is_number_float() || !(alpha.get<double>() > 0) || !(alpha.get<double>() < 1))
        unknown("alpha", "a number above 0 and below 1");
    }
  }

  // Checks one budget per token of the horizon; the first must be the largest.
  void check_table() {
    const auto most = static_cast<std::size_t>(rule_.horizon);
    const json& table = array_of(rule_.parameters["table"], "schedule.table", most, document_);
    if (table.size() != most)
      fields_.refuse("table", "has " + std::to_string(table.size()) +
                                  " budgets; allowed: one a token of the horizon, " +
                                  std::to_string(most));
    for (const json& budget : table)
      integer_of(budget, "schedule.table", rule_.min_exit_layer, rule_.max_exit_layer, document_);
    if (table.front() != rule_.max_exit_layer)
      fields_.refuse("table",
                     "begins with " + shown(table.front()) + "; allowed: max_exit_layer, " +
                         std::to_string(rule_.max_exit_layer) + ", because budgets never grow");
  }

  // Checks that the smallest budget includes the layers that always run.
  void check_placement() {
    const std::string_view placement = rule_.placement->name;
    std::int64_t least = rule_.warmup_layers + 1;
    if (placement == "bottom") least = 1;
    if (placement == "unified" || placement == "unified-nested")
      least = std::max<std::int64_t>(least, 2);
    if (placement == "d3")
      least = rule_.warmup_layers +
              integer_of(rule_.parameters["tail"], "schedule.tail", 1, rule_.num_layers, document_);
    if (rule_.min_exit_layer < least)
      fields_.refuse("min_exit_layer", "is " + std::to_string(rule_.min_exit_layer) +
                                           "; allowed with placement " + std::string(placement) +
                                           ": " + std::to_string(least) + " or more");
  }

  Fields fields_;
  const Document& document_;
  ScheduleRule rule_;
};

}  // namespace

bool ScheduleRule::implies_horizon() const {
  if (decay->name == "table") return true;
  if (decay->name != "d3") return false;
  const auto is_least = [this](std::int64_t index) {
    return decay->budget(*this, index) == min_exit_layer;
  };
  const bool has_fallen = is_least(horizon - 1) || horizon == constants::kMaxHorizon;
  return has_fallen && (horizon == 1 || !is_least(horizon - 2));
}

ScheduleRule rule_of(const json& value, const Document& document) {
  return RuleReader(value, document).read();
}

ScheduleRule full_rule(std::int64_t num_layers) {
  ScheduleRule rule;
  rule.num_layers = rule.max_exit_layer = rule.min_exit_layer = num_layers;
  rule.warmup_layers = 0;
  rule.horizon = 1;
  rule.decay = &*std::find_if(decays().begin(), decays().end(),
                              [](const Decay& each) { return each.name == "constant"; });
  return rule;
}

std::string text_of(const ScheduleRule& rule) {
  const bool is_top = rule.placement == &placements().front();
  const bool is_full = rule.is_constant() && is_top && rule.prompt == "full" &&
                       rule.min_exit_layer == rule.num_layers && rule.warmup_layers == 0 &&
                       rule.horizon == 1;
  if (is_full) return "full";
  std::string text(rule.decay->name);
  const auto add = [&text](const std::string& name, const std::string& value) {
    text.append(text.find(':') == std::string::npos ? ":" : ",").append(name + "=" + value);
  };
  add("max", std::to_string(rule.max_exit_layer));
  add("min", std::to_string(rule.min_exit_layer));
  add("warmup", std::to_string(rule.warmup_layers));
  add("horizon", std::to_string(rule.horizon));
  if (!is_top) add("placement", std::string(rule.placement->name));
  for (const char* name : {rule.decay->parameter, rule.placement->parameter}) {
    if (name == nullptr) continue;
    const json& value = rule.parameters[name];
    std::string written;
    for (const json& each : value.is_array() ? value : json::array({value}))
      written += (written.empty() ? "" : "/") + number_text(each);
    add(name, written);
  }
  if (rule.prompt != "full") add("prompt", rule.prompt);
  return text;
}

}  // namespace skipdec::runtime
