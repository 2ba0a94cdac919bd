// The sampling parameters that a bundle recommends.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "json/fields.h"

namespace skipdec::runtime {

// Of requests that leave these parameters out; without a recommendation they change nothing.
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
