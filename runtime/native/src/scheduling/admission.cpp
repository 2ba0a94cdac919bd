#include "scheduling/admission.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include "errors.h"

namespace skipdec::runtime {

namespace {

using Parameters = std::map<std::string, std::int64_t, std::less<>>;

class FirstComeFirstServed : public Admission {
 public:
  std::optional<double> wait_until(const Situation&) const override { return std::nullopt; }
};

// Admits requests when nothing runs, when ``min_free`` slots are free and as many rows wait, or
// ``hold_ms`` after the first of them could have been admitted.
class Gang : public Admission {
 public:
  explicit Gang(const Parameters& parameters)
      : min_free_(parameters.at("min_free")), hold_ms_(parameters.at("hold_ms")) {}

  std::optional<double> wait_until(const Situation& situation) const override {
    const bool is_gang = std::min(situation.free, situation.waiting) >= min_free_;
    const double until = situation.since + static_cast<double>(hold_ms_) / 1000;
    if (situation.running == 0 || is_gang || situation.now >= until) return std::nullopt;
    return until;
  }

 private:
  std::int64_t min_free_, hold_ms_;
};

struct Rule {
  std::string_view name;
  std::vector<Parameters::value_type> defaults;  // in the order of messages
  std::unique_ptr<const Admission> (*make)(const Parameters&);
};

const std::array<Rule, 2>& rules() {
  static const std::array<Rule, 2> known{
      Rule{"fcfs",
           {},
           [](const Parameters&) -> std::unique_ptr<const Admission> {
             return std::make_unique<FirstComeFirstServed>();
           }},
      Rule{"gang",
           {{"min_free", 2}, {"hold_ms", 8}},
           [](const Parameters& parameters) -> std::unique_ptr<const Admission> {
             return std::make_unique<Gang>(parameters);
           }},
  };
  return known;
}

void read_parameter(const Rule& rule, std::string_view item, Parameters& parameters) {
  const std::size_t equals = std::min(item.find('='), item.size());
  const auto found = parameters.find(item.substr(0, equals));
  const std::string_view value = item.substr(std::min(equals + 1, item.size()));
  std::int64_t number = -1;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool is_number =
      problem == std::errc() && end == value.data() + value.size() && number >= 0;
  if (found == parameters.end() || !is_number) {
    std::string allowed;
    for (const auto& [name, standard] : rule.defaults) {
      allowed += (allowed.empty() ? "" : ", ") + name + "=N";
    }
    throw Error(Status::kUsage, "admission",
                "'" + std::string(item) + "' is not one of " + std::string(rule.name) +
                    "'s: " + (allowed.empty() ? "no parameter" : allowed));
  }
  found->second = number;
}

}  // namespace

std::unique_ptr<const Admission> Admission::parse(std::string_view text) {
  if (text.empty()) text = rules().front().name;
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, colon);
  const auto* const rule = std::find_if(rules().begin(), rules().end(),
                                        [&](const Rule& each) { return each.name == name; });
  if (rule == rules().end()) {
    throw Error(Status::kUsage, "admission",
                "'" + std::string(name) + "' is unknown; allowed: fcfs, gang");
  }
  Parameters parameters(rule->defaults.begin(), rule->defaults.end());
  std::string_view rest = text.substr(std::min(colon + 1, text.size()));
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    if (comma > 0) read_parameter(*rule, rest.substr(0, comma), parameters);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return rule->make(parameters);
}

}  // namespace skipdec::runtime
