// The schedules of a bundle: its own, its presets, and any other that is given as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "constants.h"
#include "schedule/rule.h"

namespace skipdec::runtime {

// Returns true if ``schedule`` is the name of a file.
bool names_file(std::string_view schedule);

// The contents of schedule.json. Immutable; any thread may use it.
class Schedules {
 public:
  Schedules();

  // Parses and checks schedule.json (docs/bundle-format.md) of a model of ``positions``. Throws
  // Error (kBundle).
  static Schedules parse(std::string_view text, std::int64_t num_layers, const std::string& subject,
                         std::int64_t positions = constants::kMaxHorizon);

  // Returns the schedule that ``text`` names, for a request of up to ``max_tokens`` tokens:
  //   ""                        the bundle's own
  //   "full", "2x", "4x"        a preset; its horizon is the own schedule's, or max_tokens
  //   "2x:horizon=64"           the same with a horizon, up to the model's positions or, if that
  //                             is longer, the own schedule's horizon
  //   "{…}", a path *.json      the JSON of a rule, alone or as "schedule" of an object, as
  //                             `skipdec schedule show --json` prints it; a file's horizon has no
  //                             bound
  // Throws Error (kSchedule), naming what is allowed and the command that makes the JSON of any
  // other schedule. Two requests that run the same preset share one schedule while either holds it.
  SchedulePointer resolve(std::string_view text, std::int64_t max_tokens) const;

  const SchedulePointer& own() const { return own_; }

 private:
  std::int64_t num_layers_ = 0;
  std::int64_t positions_ = constants::kMaxHorizon;
  SchedulePointer own_;
  std::optional<std::int64_t> own_horizon_;
  std::map<std::string, ScheduleRule> presets_;

  SchedulePointer resolve_preset(std::string_view text, std::int64_t max_tokens) const;
  // Throws Error (kSchedule) for a horizon that no request reaches.
  void require_reachable(std::int64_t horizon) const;

  class Shared;  // the schedules of presets that are in use
  std::shared_ptr<Shared> shared_;
};

}  // namespace skipdec::runtime
