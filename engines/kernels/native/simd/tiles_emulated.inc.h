// What tiles_amx.inc.h does, in plain C++: kernels for AMX are tested with it on any processor.
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
  void load(const void* from) {
    std::memcpy(tiles_[kTile], from, kBytes);
  }
  template <int kTile>
  void store(void* to) const {
    std::memcpy(to, tiles_[kTile], kBytes);
  }
  template <int kSums, int kCodes, int kWeights>
  void add_products() {
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        std::uint32_t sum;  // which may wrap around
        std::memcpy(&sum, tiles_[kSums] + 64 * m + 4 * n, sizeof sum);
        for (int k = 0; k < 64; ++k) {
          const auto weight =
              static_cast<std::int8_t>(tiles_[kWeights][64 * (k / 4) + 4 * n + k % 4]);
          sum += static_cast<std::uint32_t>(tiles_[kCodes][64 * m + k] * weight);
        }
        std::memcpy(tiles_[kSums] + 64 * m + 4 * n, &sum, sizeof sum);
      }
    }
  }

 private:
  static constexpr std::size_t kBytes = 1024;

  // What nobody loaded is not zero, as after a task that left something behind.
  std::uint8_t tiles_[8][kBytes] = {{0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}, {0x5a}};
};

}  // namespace
}  // namespace skipdec
