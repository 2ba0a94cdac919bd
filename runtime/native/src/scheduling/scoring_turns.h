// How texts that are scored and texts that are generated share an engine's time.
#pragma once

#include <cstdint>

#include "scheduling/engine.h"

namespace skipdec::runtime {

// Lets generation run for as long as the last scored text took before the next one is scored, so
// that scoring takes about half of the time at most while something is generated.
class ScoringTurns {
 public:
  // Whether generation has had its time, and rows that run a step at least.
  bool is_due(const EngineStats& now) const {
    return seconds(now) >= until_ && (now.running == 0 || now.steps != steps_);
  }

  // Takes note of a text that was scored between ``before`` and ``after``.
  void scored(const EngineStats& before, const EngineStats& after) {
    until_ = seconds(after) + after.scoring_seconds - before.scoring_seconds;
    steps_ = after.steps;
  }

 private:
  static double seconds(const EngineStats& stats) {
    return stats.prefill_seconds + stats.decode_seconds + stats.sampling_seconds;
  }

  double until_ = 0;        // of generation, from which the next text may be scored
  std::int64_t steps_ = 0;  // when a text was last scored
};

}  // namespace skipdec::runtime
