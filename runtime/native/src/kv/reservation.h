// The KV memory of one row, reserved completely on admission so that it never runs out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace skipdec::runtime {

// Positions of one row in each layer's cache; 0 for a layer that runs only in its prompt. If the
// bundle's draft layer drafts, a further number says how many entries of generated tokens it holds.
//
// Worked: 6 layers, budgets 6 4 3 3 2 2, warm-up 1, prompt of 10 tokens, max_tokens 8: layers 0 and
// 5 always run and hold 10 + 7 positions, because the last token is never fed back; layer 4 last
// runs at generated index 2 and holds 10 + 3. The result is (17, 0, 0, 11, 13, 17).
using Reservation = std::vector<std::int64_t>;

inline Reservation reservation_of(const Schedule& schedule, std::int64_t prompt_length,
                                  std::int64_t max_tokens, bool has_draft_layer = false) {
  Reservation capacities;
  capacities.reserve(static_cast<std::size_t>(schedule.num_layers()) + 1);
  for (std::int64_t layer = 0; layer < schedule.num_layers(); ++layer) {
    const std::int64_t last = schedule.last_index(layer);
    std::int64_t fed = std::max<std::int64_t>(0, max_tokens - 1);
    if (last != Schedule::kForever) fed = std::min(fed, last + 1);
    capacities.push_back(fed > 0 ? prompt_length + fed : 0);
  }
  if (has_draft_layer) capacities.push_back(std::max<std::int64_t>(0, max_tokens - 1));
  return capacities;
}

}  // namespace skipdec::runtime
