#include "scheduling/drafting/ngrams/ngrams.h"

#include "tokens/philox.h"

namespace skipdec::runtime {

std::size_t NGramHash::operator()(const NGram& key) const {
  static const std::uint64_t secret = Philox::of_entropy().next_word();
  std::uint64_t hash = secret ^ static_cast<std::uint64_t>(key.length);
  for (const std::int32_t token : key.tokens) {  // splitmix64's mixing
    hash += static_cast<std::uint64_t>(static_cast<std::uint32_t>(token)) + 0x9E3779B97F4A7C15U;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9U;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBU;
    hash ^= hash >> 31;
  }
  return hash;
}

}  // namespace skipdec::runtime
