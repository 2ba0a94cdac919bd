// Hash table with pairs of numbers as keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "keyed_hash.h"

namespace skipdec::runtime {

class PairTable {
 public:
  struct Value {
    std::uint32_t rank;
    std::uint32_t id;
  };

  // Reserves memory for `pairs` entries; the table grows beyond that.
  explicit PairTable(std::size_t pairs = 0);

  // Inserts or replaces the value of a pair. `value.rank` is below 2^32 - 1.
  void put(std::uint32_t first, std::uint32_t second, Value value);

  // Returns null if the pair is missing; valid until the next put.
  const Value* find(std::uint32_t first, std::uint32_t second) const {
    const Slot& slot = slots_[slot_of(key_of(first, second))];
    return slot.value.rank == kEmpty ? nullptr : &slot.value;
  }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;

  struct Slot {
    std::uint64_t key = 0;
    Value value = {kEmpty, 0};
  };

  static std::uint64_t key_of(std::uint32_t first, std::uint32_t second) {
    return (std::uint64_t{first} << 32U) | second;
  }

  std::size_t slot_of(std::uint64_t key) const {
    std::size_t slot = hash_.of(key) & (slots_.size() - 1);
    while (slots_[slot].value.rank != kEmpty && slots_[slot].key != key)
      slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  void resize(std::size_t slots);

  KeyedHash hash_;
  std::vector<Slot> slots_;  // size is a power of two; at most half in use
  std::size_t used_ = 0;
};

}  // namespace skipdec::runtime
