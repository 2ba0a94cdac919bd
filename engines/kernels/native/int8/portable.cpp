// Products in plain C++, for any processor.
#define SKIPDEC_PORTABLE

#include "int8/integer_product.h"
#include "int8/tables.h"
// clang-format off: order matters
#include "simd/begin.inc.h"
// clang-format on

namespace skipdec {
namespace {

constexpr int kMaximumRows = 2;
constexpr int kLanes = 16;

constexpr int columns_at_once(int) { return 16; }

struct Codes {
  std::int32_t along_depth[4];
  static Codes load(const std::uint8_t* from) { return {{from[0], from[1], from[2], from[3]}}; }
};

struct Weights {
  const std::int8_t* lanes;
  static Weights load(const std::int8_t* from) { return {from}; }
};

struct Sums {
  std::uint32_t lanes[kBlockColumns];  // unsigned: they may wrap around
  static Sums zero() { return {}; }
  void add(const Codes& codes, const Weights& weights) {
    for (std::int64_t column = 0; column < kBlockColumns; ++column) {
      const std::int8_t* four = weights.lanes + column * kDepthStep;
      std::int32_t sum = 0;
      for (int i = 0; i < kDepthStep; ++i) sum += codes.along_depth[i] * four[i];
      lanes[column] += static_cast<std::uint32_t>(sum);
    }
  }
  void add(const Sums& other) {
    for (std::int64_t column = 0; column < kBlockColumns; ++column) {
      lanes[column] += other.lanes[column];
    }
  }
};

struct BlockSums {
  Sums parts[1];
  Vector less(const std::int32_t* offset) const {
    Vector difference;
    for (std::int64_t column = 0; column < kBlockColumns; ++column) {
      const std::uint32_t bits =
          parts[0].lanes[column] - static_cast<std::uint32_t>(offset[column]);
      difference.lanes[column] = static_cast<float>(static_cast<std::int32_t>(bits));
    }
    return difference;
  }
};

void store_codes(const std::uint8_t (&codes)[kDepthMultiple], std::uint8_t* to) {
  std::memcpy(to, codes, sizeof codes);
}

}  // namespace
}  // namespace skipdec

#include "int8/row_kernels.inc.h"

namespace skipdec {
const IntegerKernels& SKIPDEC_NAMED(integer_kernels)() { return kKernels<>; }
}  // namespace skipdec

#include "simd/end.inc.h"
