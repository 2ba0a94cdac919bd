// Element types that kernels load from and store to memory.
#pragma once

#include <cstdint>

namespace skipdec {

// IEEE 754 binary16.
struct Float16 {
  std::uint16_t bits;
};

// bfloat16: the upper half of a float32.
struct Bfloat16 {
  std::uint16_t bits;
};

}  // namespace skipdec
