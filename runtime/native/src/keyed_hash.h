// Hashes keys that come from files and texts.
#pragma once

#include <cstdint>

#include "tokens/philox.h"

namespace skipdec::runtime {

// Hashes with a random number of the process, so that nobody can choose colliding keys.
class KeyedHash {
 public:
  // Throws Error (kEnvironment) if the system has no entropy.
  KeyedHash() : secret_(secret_of_process()) {}

  std::uint64_t of(std::uint64_t word) const { return joined(secret_, word); }
  // Returns the hash of the words of ``hash`` followed by ``word``.
  std::uint64_t joined(std::uint64_t hash, std::uint64_t word) const {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(hash ^ word) * secret_;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
  }

 private:
  static std::uint64_t secret_of_process() {
    static const std::uint64_t drawn = Philox::of_entropy().next_word() | 1U;
    return drawn;
  }

  std::uint64_t secret_;  // odd
};

}  // namespace skipdec::runtime
