// The random stream of one completion, word for word numpy's Philox.
#pragma once

#include <array>
#include <cstdint>

namespace skipdec::runtime {

// Philox 4x64 with ten rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3). Block b
// = 1, 2, … of four words is the counter (b, 0, 0, 0) under the key.
//
// Equals numpy's ``Generator(Philox(key=[seed, output_index])).random()``, number by number.
class Philox {
 public:
  using Key = std::array<std::uint64_t, 2>;

  explicit Philox(const Key& key) : key_(key) {}

  // Seeds the key with the system's entropy. Throws Error (kEnvironment) if there is none.
  static Philox of_entropy();

  std::uint64_t next_word() {
    if (used_ == block_.size()) {
      ++counter_;  // 2^64 blocks are never needed
      block_ = block_of(counter_, key_);
      used_ = 0;
    }
    return block_[used_++];
  }

  // Returns a number in [0, 1): the first 53 bits of the next word.
  double next_number() { return static_cast<double>(next_word() >> 11) * 0x1p-53; }

 private:
  using Block = std::array<std::uint64_t, 4>;

  static Block block_of(std::uint64_t counter, Key key);

  Key key_;
  std::uint64_t counter_ = 0;
  Block block_{};
  std::size_t used_ = 4;
};

}  // namespace skipdec::runtime
