// Products in plain C++, for any processor.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "int4/block_product.h"
#include "int4/tables.h"
#include "simd/element.h"
#include "simd/vector_portable.inc.h"

namespace skipdec {
namespace {

constexpr int kGroup = 4;

struct Codes {
  std::int8_t along_depth[kPanelColumns][kUnitDepth];
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    for (std::int64_t at = 0; at < kUnitBytes; ++at) {
      std::int8_t* to = codes.along_depth[at / 4 % kPanelColumns] + at / 64 * 8 + at % 4;
      to[0] = static_cast<std::int8_t>(from[at] & 15);
      to[4] = static_cast<std::int8_t>(from[at] >> 4);
    }
    return codes;
  }
};

struct Sums {
  std::int32_t lanes[kPanelColumns];
  static Sums start(std::int32_t value) {
    Sums sums;
    for (std::int32_t& lane : sums.lanes) lane = value;
    return sums;
  }
  void add(const Codes& codes, const std::int8_t* row) {
    for (std::int64_t column = 0; column < kPanelColumns; ++column) {
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < kUnitDepth; ++k) sum += codes.along_depth[column][k] * row[k];
      lanes[column] += sum;
    }
  }
  Vector as_floats() const {
    Vector floats;
    for (std::int64_t column = 0; column < kPanelColumns; ++column) {
      floats.lanes[column] = static_cast<float>(lanes[column]);
    }
    return floats;
  }
};

}  // namespace
}  // namespace skipdec

#include "int4/multiply.inc.h"
#include "int4/row_by_row.inc.h"

namespace skipdec {
const BlockKernels& portable_block_kernels() { return kKernels; }
}  // namespace skipdec
