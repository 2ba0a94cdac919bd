// N-grams: short runs of tokens, as keys of tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "constants.h"
#include "keyed_hash.h"

namespace skipdec::runtime {

// The last tokens of a text, 1 to 5; token ids fit 32 bits. Unused places are 0.
struct NGram {
  std::int32_t length = 0;
  std::array<std::int32_t, constants::kDraftNgramTokens> tokens{};

  // Copies the ``length`` tokens before ``end``.
  static NGram before(const std::int64_t* end, std::int64_t length) {
    NGram made;
    made.length = static_cast<std::int32_t>(length);
    for (std::int64_t index = 0; index < length; ++index) {
      made.tokens[static_cast<std::size_t>(index)] = static_cast<std::int32_t>(end[index - length]);
    }
    return made;
  }

  bool operator==(const NGram& other) const {
    return length == other.length && tokens == other.tokens;
  }
};

struct NGramHash {
  KeyedHash keyed;

  std::size_t operator()(const NGram& key) const {
    std::uint64_t hash = keyed.of(static_cast<std::uint64_t>(key.length));
    for (const std::int32_t token : key.tokens) {
      hash = keyed.joined(hash, static_cast<std::uint32_t>(token));
    }
    return hash;
  }
};

}  // namespace skipdec::runtime
