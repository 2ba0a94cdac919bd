#include "tokenizer/model/pair_table.h"

#include <vector>

namespace skipdec::runtime {

PairTable::PairTable(std::size_t pairs) {
  std::size_t slots = 16;
  while (slots < 2 * pairs) slots *= 2;
  slots_.resize(slots);
}

void PairTable::put(std::uint32_t first, std::uint32_t second, Value value) {
  if (2 * (used_ + 1) > slots_.size()) resize(2 * slots_.size());
  Slot& slot = slots_[slot_of(key_of(first, second))];
  if (slot.value.rank == kEmpty) ++used_;
  slot = {key_of(first, second), value};
}

void PairTable::resize(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.value.rank != kEmpty) slots_[slot_of(slot.key)] = slot;
}

}  // namespace skipdec::runtime
