// Byte-pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pair_table.h"
#include "tokenizer/vocabulary.h"

namespace skipdec::runtime {

// The BPE model of a tokenizer.json.
struct BytePairModel {
  Vocabulary vocabulary;  // finished
  PairTable merges;       // ids of two tokens -> rank and id of the merged one
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;
  bool ignore_merges = false;  // a piece that is a token is encoded as that token
};

// Merges neighbours, lowest rank first and leftmost first among equals, in n log n for n bytes.
// Immutable; any thread may use it.
class BytePairs {
 public:
  // Memory that `encode` reuses; one per thread.
  struct Workspace {
    struct Symbol {
      std::uint32_t id;
      std::uint32_t previous, next;  // indices; kNone at the ends
      bool merged;                   // into its predecessor
    };
    struct Merge {
      std::uint64_t order;  // rank, then position
      std::uint32_t id;
    };
    std::vector<Symbol> symbols;
    std::vector<Merge> queue;
    std::string text;
  };

  explicit BytePairs(BytePairModel model);

  const Vocabulary& vocabulary() const { return model_.vocabulary; }
  // True if each byte is a token.
  bool has_all_bytes() const;

  // Appends the tokens of `piece`, any bytes of less than 4 GiB. A byte without a token becomes the
  // unknown token, or is omitted if the model names none. Throws Error (kBundle) if the vocabulary
  // lacks the unknown token.
  void encode(std::string_view piece, std::vector<std::int64_t>& token_ids,
              Workspace& workspace) const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  void split(std::string_view piece, Workspace& workspace) const;
  void consider(std::uint32_t left, Workspace& workspace) const;
  void merge_all(Workspace& workspace) const;

  BytePairModel model_;
  std::array<std::uint32_t, 256> byte_ids_{};  // kNone: no token
  std::uint32_t unknown_id_ = kNone;
};

}  // namespace skipdec::runtime
