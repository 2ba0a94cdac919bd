// Emulates tiles_amx.inc.h in plain C++, so that kernels for AMX can be tested on any processor.
#pragma once

namespace skipdec {
namespace {

class Tiles {
 public:
  template <int kTile>
  void zero() {
    std::memset(tiles_[kTile], 0, kBytes);
  }
  template <int kTile>
  void load(const void* from, std::int64_t stride = 64) {
    const auto* row = static_cast<const std::uint8_t*>(from);
    for (int m = 0; m < 16; ++m, row += stride) std::memcpy(tiles_[kTile] + 64 * m, row, 64);
  }
  template <int kTile>
  void store(void* to) const {
    std::memcpy(to, tiles_[kTile], kBytes);
  }
  template <int kSums, int kCodes, int kWeights>
  void add_products() {
    add<std::uint8_t>(tiles_[kSums], tiles_[kCodes], tiles_[kWeights]);
  }
  template <int kSums, int kCodes, int kWeights>
  void add_signed_products() {
    add<std::int8_t>(tiles_[kSums], tiles_[kCodes], tiles_[kWeights]);
  }

 private:
  template <class Code>
  static void add(std::uint8_t* sums, const std::uint8_t* codes, const std::uint8_t* weights) {
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        std::uint32_t sum;  // may wrap around
        std::memcpy(&sum, sums + 64 * m + 4 * n, sizeof sum);
        for (int k = 0; k < 64; ++k) {
          const auto weight = static_cast<std::int8_t>(weights[64 * (k / 4) + 4 * n + k % 4]);
          sum += static_cast<std::uint32_t>(static_cast<Code>(codes[64 * m + k]) * weight);
        }
        std::memcpy(sums + 64 * m + 4 * n, &sum, sizeof sum);
      }
    }
  }

  static constexpr std::size_t kBytes = 1024;

  // Tiles start with arbitrary data, like tiles that an earlier task has used.
  std::uint8_t tiles_[8][kBytes] = {{0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}};
};

}  // namespace
}  // namespace skipdec
