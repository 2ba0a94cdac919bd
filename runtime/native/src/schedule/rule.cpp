#include "schedule/rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "constants.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

// The parameter that a decay or placement needs; nullptr for none.
struct Named {
  std::string_view name;
  const char* parameter;
};

constexpr std::array<Named, 8> kDecayNames{{{"linear", nullptr},
                                            {"cosine", nullptr},
                                            {"power", "power"},
                                            {"exponential", "rate"},
                                            {"step", "steps"},
                                            {"constant", nullptr},
                                            {"table", "table"},
                                            {"d3", "alpha"}}};
constexpr std::array<Named, 6> kPlacementNames{{{"top", nullptr},
                                                {"bottom", nullptr},
                                                {"unified", nullptr},
                                                {"unified-nested", nullptr},
                                                {"hierarchical", nullptr},
                                                {"d3", "tail"}}};

// Reads a rule: its bounds, and exactly the parameters that its decay and placement have.
class RuleReader {
 public:
  RuleReader(const json& value, const Document& document)
      : fields_(value, "schedule", document), object_(value), document_(document) {}

  Rule read() {
    rule_.num_layers = fields_.integer("num_layers", 1, constants::kMaxLayers);
    rule_.max_exit_layer = fields_.integer("max_exit_layer", 1, rule_.num_layers);
    rule_.min_exit_layer = fields_.integer("min_exit_layer", 1, rule_.max_exit_layer);
    if (object_.contains("warmup_layers"))
      rule_.warmup_layers = fields_.integer("warmup_layers", 0, rule_.num_layers);
    rule_.horizon = fields_.integer("horizon", 1, constants::kMaxHorizon);
    if (object_.contains("prompt")) rule_.prompt = fields_.text("prompt");
    if (rule_.prompt != "full" && rule_.prompt != "decay") unknown("prompt", "full, decay");
    choose("decay", rule_.decay, kDecayNames);
    choose("placement", rule_.placement, kPlacementNames);
    fields_.require_no_others();
    check_decay();
    check_placement();
    return std::move(rule_);
  }

 private:
  [[noreturn]] void unknown(const char* name, const std::string& allowed) {
    fields_.refuse(name, "is " + shown(fields_.value(name)) + "; allowed: " + allowed);
  }

  template <std::size_t size>
  void choose(const char* kind, std::string& chosen, const std::array<Named, size>& all) {
    if (object_.contains(kind)) chosen = fields_.text(kind);
    std::string names;
    for (const Named& each : all) names += (names.empty() ? "" : ", ") + std::string(each.name);
    if (std::none_of(all.begin(), all.end(),
                     [&](const Named& each) { return each.name == chosen; }))
      unknown(kind, names);
    for (const Named& each : all)
      if (each.parameter != nullptr) parameter(each.parameter, each.name == chosen, chosen);
  }

  void parameter(const char* name, bool is_needed, const std::string& chosen) {
    const json* found = fields_.find(name);
    if (found != nullptr && !is_needed)
      fields_.refuse(name, "is " + shown(*found) + "; " + chosen + " has none");
    if (is_needed) rule_.parameters[name] = fields_.value(name);
  }

  // A finite number above 0.
  void check_positive(const char* name) {
    const json& value = rule_.parameters[name];
    if (!value.is_number() || !(value.get<double>() > 0)) unknown(name, "a finite number above 0");
  }

  void check_decay() {
    if (rule_.decay == "power") check_positive("power");
    if (rule_.decay == "exponential") check_positive("rate");
    if (rule_.decay == "step")
      integer_of(rule_.parameters["steps"], "schedule.steps", 2, rule_.horizon, document_);
    if (rule_.decay == "constant" && rule_.fall() != 0)
      fields_.refuse("min_exit_layer", "is not max_exit_layer, which decay constant needs");
    if (rule_.decay == "table") check_table();
    if (rule_.decay == "d3") {
      const json& alpha = rule_.parameters["alpha"];
      if (!alpha.is_number_float() || !(alpha.get<double>() > 0) || !(alpha.get<double>() < 1))
        unknown("alpha", "a number above 0 and below 1");
    }
  }

  // One budget a token of the horizon; the first is the largest.
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
      fields_.refuse("table", "does not begin with max_exit_layer");
  }

  void check_placement() {
    if (rule_.placement == "d3")
      integer_of(rule_.parameters["tail"], "schedule.tail", 1, rule_.num_layers, document_);
    const std::int64_t least = rule_.least_budget();
    if (rule_.min_exit_layer < least)
      fields_.refuse("min_exit_layer", "is " + std::to_string(rule_.min_exit_layer) +
                                           "; allowed with placement " + rule_.placement + ": " +
                                           std::to_string(least) + " or more");
  }

  Fields fields_;
  const json& object_;
  const Document& document_;
  Rule rule_;
};

}  // namespace

std::int64_t Rule::least_budget() const {
  if (placement == "bottom") return 1;
  if (placement == "d3") return warmup_layers + parameters["tail"].get<std::int64_t>();
  const bool needs_two = placement == "unified" || placement == "unified-nested";
  return std::max<std::int64_t>(warmup_layers + 1, needs_two ? 2 : 1);
}

Rule rule_of(const json& value, const Document& document) {
  return RuleReader(value, document).read();
}

}  // namespace skipdec::runtime
