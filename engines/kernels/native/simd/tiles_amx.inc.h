// The eight tile registers of AMX: up to 16 rows of 64 bytes each. tiles_emulated.inc.h emulates
// them in plain C++ for tests on other processors.
//
// It uses inline assembly, because the intrinsics paste the tile's number into their text, which
// therefore can't be a template parameter.
#pragma once

namespace skipdec {
namespace {

// Configures the calling thread's tiles as 16 rows of 64 bytes, and releases them in the
// destructor.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } configuration;
    __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
  }
  ~Tiles() { __asm__ volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  void zero() const {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Loads 16 rows of 64 bytes, each ``stride`` bytes after the one before.
  template <int kTile>
  void load(const void* from, std::int64_t stride = 64) const {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                     :
                     : "r"(from), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  void store(void* to) const {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                     :
                     : "r"(to), "r"(std::int64_t{64}), "i"(kTile)
                     : "memory");
  }
  // Computes sums[m][n] += Σ codes[m][4 k + i] · weights[k][4 n + i] with int32 sums, uint8 codes
  // and int8 weights.
  template <int kSums, int kCodes, int kWeights>
  void add_products() const {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0"
                     :
                     : "i"(kSums), "i"(kCodes), "i"(kWeights));
  }
  // Does the same with int8 codes.
  template <int kSums, int kCodes, int kWeights>
  void add_signed_products() const {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0"
                     :
                     : "i"(kSums), "i"(kCodes), "i"(kWeights));
  }
};

}  // namespace
}  // namespace skipdec
