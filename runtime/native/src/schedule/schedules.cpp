#include "schedule/schedules.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "errors.h"
#include "files/digest.h"
#include "files/read.h"
#include "files/sha256.h"
#include "json/canonical.h"
#include "json/shown.h"
#include "json/tree.h"
#include "schedule/plan.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

void require_depth(const ScheduleRule& rule, std::int64_t num_layers, const Document& document) {
  if (rule.num_layers != num_layers)
    document.refuse("schedule", "is for " + std::to_string(rule.num_layers) +
                                    " layers; the model has " + std::to_string(num_layers));
}

struct GivenRule {
  ScheduleRule rule;
  Document document;  // where it was given
};

// Throws unless ``digest`` is that of the canonical text of ``value``, however the file writes it.
void check_digest(const json& digest, json value, const Document& document) {
  constexpr std::size_t kDigits = 64, kMostShown = 12;
  value["digest"] = std::string(kDigits, '0');
  const std::string seen = sha256_hex(canonical_text(value));
  if (digest != seen)
    document.refuse("digest", "is " + shown(digest) + ", the content has " +
                                  seen.substr(0, kMostShown) + "…; the file was changed");
}

// Reads a rule's JSON, alone or as ``skipdec schedule show --json`` prints it.
GivenRule given_rule(std::string_view text, const std::string& subject, std::int64_t num_layers) {
  const Document document{Status::kSchedule, subject,
                          "make it anew: skipdec schedule show SCHEDULE --layers " +
                              std::to_string(num_layers) + " --json"};
  const json value = parse_json(text, document);
  Fields fields(value, "", document);
  const json* inner = fields.find_given("schedule");
  const json* digest = fields.find_given("digest");
  if (inner != nullptr && digest != nullptr) check_digest(*digest, value, document);
  const ScheduleRule rule = rule_of(inner != nullptr ? *inner : value, document);
  require_depth(rule, num_layers, document);
  return {rule, document};
}

// Returns 64 for "horizon=64"; nothing if there are other options.
std::optional<std::int64_t> horizon_of(std::string_view options) {
  constexpr std::string_view kKey = "horizon=";
  if (options.substr(0, kKey.size()) != kKey) return std::nullopt;
  return number_in(options.substr(kKey.size()));
}

}  // namespace

class Schedules::Shared {
 public:
  template <class Make>
  SchedulePointer get(const std::string& key, const Make& make) {
    const std::scoped_lock lock(mutex_);
    if (SchedulePointer found = in_use_[key].lock()) return found;
    for (auto entry = in_use_.begin(); entry != in_use_.end();)
      entry = entry->second.expired() ? in_use_.erase(entry) : std::next(entry);
    SchedulePointer made = make();
    in_use_[key] = made;
    return made;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const Schedule>> in_use_;
};

bool names_file(std::string_view schedule) {
  constexpr std::string_view kEnd = ".json";
  const std::string_view name = trimmed(schedule);
  return name.size() >= kEnd.size() && lowered(name.substr(name.size() - kEnd.size())) == kEnd;
}

Schedules::Schedules() : shared_(std::make_shared<Shared>()) {}

Schedules Schedules::parse(std::string_view text, std::int64_t num_layers,
                           const std::string& subject, std::int64_t positions) {
  const Document document{Status::kBundle, subject, "write it with 'skipdec schedule set'"};
  const json value = parse_json(text, document);
  Fields fields(value, "", document);
  require_digest(text, document);
  fields.ignore("digest");
  const json& own_rule = fields.value("schedule");
  if (!own_rule.is_object())
    fields.refuse("schedule", "is " + shown(own_rule) + "; allowed: an object");
  fields.require_no_others();
  require_canonical(text, value, document);
  const Document of_rule{Status::kSchedule, subject, document.remedy};
  const ScheduleRule rule = rule_of(own_rule, of_rule);

  require_depth(rule, num_layers, document);
  Schedules schedules;
  schedules.num_layers_ = num_layers;
  schedules.positions_ = std::min(positions, constants::kMaxHorizon);
  schedules.own_ = schedule_of(rule, of_rule);
  if (!rule.is_constant()) schedules.own_horizon_ = rule.horizon;
  schedules.presets_ = preset_rules(num_layers);
  return schedules;
}

void Schedules::require_reachable(std::int64_t horizon) const {
  const std::int64_t longest = std::max(positions_, own_horizon_.value_or(1));
  if (horizon > longest && longest < constants::kMaxHorizon)
    throw Error(Status::kSchedule, "exit schedule",
                "horizon is " + std::to_string(horizon) + "; allowed: " + range_text(1, longest) +
                    (longest == positions_ ? ", the bundle's positions" : ", the bundle's own"));
}

SchedulePointer Schedules::resolve(std::string_view text, std::int64_t max_tokens) const {
  if (text.empty()) return own_;
  text = trimmed(text);
  if (text.substr(0, 1) == "{") {
    const GivenRule given = given_rule(text, "schedule", num_layers_);
    if (!given.rule.implies_horizon()) require_reachable(given.rule.horizon);
    return schedule_of(given.rule, given.document);
  }
  if (names_file(text)) {
    const std::string path(text);
    const Document document{Status::kSchedule, "schedule " + path, ""};
    const std::string content = read_file(path, JsonLimits{}.max_bytes, document);
    const GivenRule given = given_rule(content, document.subject, num_layers_);
    return schedule_of(given.rule, given.document);
  }
  return resolve_preset(text, max_tokens);
}

SchedulePointer Schedules::resolve_preset(std::string_view text, std::int64_t max_tokens) const {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto preset = presets_.find(std::string(text.substr(0, colon)));
  const std::string_view options = text.substr(std::min(colon + 1, text.size()));
  const std::optional<std::int64_t> named = horizon_of(options);
  const bool is_known = preset != presets_.end();
  const bool has_horizon = is_known && !preset->second.is_constant();
  if (!is_known || (!options.empty() && !(named && has_horizon))) {
    const std::string names = joined(presets_, [](const auto& each) { return each.first; });
    throw Error(Status::kSchedule, "schedule " + shown_text(text),
                "is unknown here; allowed: " + names +
                    ", 2x:horizon=64 or JSON; for any other, run: skipdec schedule show "
                    "SCHEDULE --layers " +
                    std::to_string(num_layers_) + " --horizon 64 --json");
  }
  const std::int64_t horizon = !has_horizon ? 1
                               : named      ? *named
                                            : own_horizon_.value_or(max_tokens);
  if (named) require_reachable(*named);
  if (horizon < 1 || horizon > constants::kMaxHorizon)
    throw Error(Status::kSchedule, "exit schedule",
                "horizon is " + std::to_string(horizon) +
                    "; allowed: " + range_text(1, constants::kMaxHorizon));
  return shared_->get(preset->first + ":" + std::to_string(horizon), [&] {
    ScheduleRule rule = preset->second;
    rule.horizon = horizon;
    return schedule_of(rule, Document{Status::kSchedule, "exit schedule", ""});
  });
}

}  // namespace skipdec::runtime
