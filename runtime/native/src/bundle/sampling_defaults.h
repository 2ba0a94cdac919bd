// The sampling parameters that a bundle recommends.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "json/fields.h"

namespace skipdec::runtime {

// Defaults of requests that omit these parameters; without a recommendation they have no effect.
struct SamplingDefaults {
  double temperature = 1.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;

  // Reads the manifest's member. Throws an error of ``document`` for values out of bounds.
  static SamplingDefaults of(const nlohmann::json& value, const Document& document);
};

}  // namespace skipdec::runtime
