// ScoringTurns: divides a running batch's time between scoring and generation.
#pragma once

#include <cstdint>

#include "scheduling/running_batch.h"

namespace skipdec::runtime {

// After scoring a text, generation runs for as long as the scoring took before the next text is
// scored, so that scoring takes at most about half of the time.
class ScoringTurns {
 public:
  // Returns true once generation has had as much time and running rows at least one step.
  bool is_due(const EngineStats& now) const {
    return seconds(now) >= until_ && (now.running == 0 || now.steps != steps_);
  }

  // Notes a text that was scored between ``before`` and ``after``.
  void scored(const EngineStats& before, const EngineStats& after) {
    until_ = seconds(after) + after.scoring_seconds - before.scoring_seconds;
    steps_ = after.steps;
  }

 private:
  static double seconds(const EngineStats& stats) {
    return stats.prefill_seconds + stats.decode_seconds + stats.sampling_seconds;
  }

  double until_ = 0;        // seconds of generation at which the next text may be scored
  std::int64_t steps_ = 0;  // when a text was last scored
};

}  // namespace skipdec::runtime
