// Products in plain C++, for any processor.
#define SKIPDEC_PORTABLE

#include "blocks/block_product.h"
#include "blocks/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

namespace skipdec {
namespace {

template <int kBits>
struct Codes;

template <>
struct Codes<4> {
  static constexpr int kGroup = 4, kZeroCode = 8;
  std::int8_t along_depth[kPanelColumns][kUnitDepth];
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    for (std::int64_t at = 0; at < panel_bytes(kUnitDepth, 4); ++at) {
      std::int8_t* to = codes.along_depth[at / 4 % kPanelColumns] + at / 64 * 8 + at % 4;
      to[0] = static_cast<std::int8_t>(from[at] & 15);
      to[4] = static_cast<std::int8_t>(from[at] >> 4);
    }
    return codes;
  }
};

template <>
struct Codes<8> {
  static constexpr int kGroup = 4, kZeroCode = 0;
  std::int8_t along_depth[kPanelColumns][kUnitDepth];
  static Codes load(const std::uint8_t* from) {
    Codes codes;
    for (std::int64_t at = 0; at < panel_bytes(kUnitDepth, 8); ++at) {
      codes.along_depth[at / 4 % kPanelColumns][at / 64 * 4 + at % 4] =
          static_cast<std::int8_t>(from[at]);
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
  template <int kBits>
  void add(const Codes<kBits>& codes, const std::int8_t* row) {
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

#include "blocks/multiply.inc.h"
#include "blocks/row_by_row.inc.h"

namespace skipdec {
const BlockKernels& SKIPDEC_NAMED(block_kernels)(int bits) { return kernels_of(bits); }
}  // namespace skipdec

#include "simd/end.inc.h"
