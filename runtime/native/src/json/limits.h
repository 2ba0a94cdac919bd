// Limits beyond which a JSON text is refused.
#pragma once

#include <cstddef>

#include "constants.h"

namespace skipdec::runtime {

struct JsonLimits {
  std::size_t max_bytes = constants::kMaxJsonBytes;
  // Maximum nesting: a number in an array is at level 2.
  std::size_t max_nesting = constants::kMaxJsonNesting;
  // Maximum number of values and keys; bounds the memory of a parsed tree (about 100 bytes each).
  std::size_t max_values = std::size_t{1} << 21;
};

}  // namespace skipdec::runtime
