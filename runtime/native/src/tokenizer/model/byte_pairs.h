// Byte-pair encoding of one piece of text, by bytes or by characters.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/model/pair_table.h"
#include "tokenizer/model/vocabulary.h"

namespace skipdec::runtime {

// The BPE model of a tokenizer.json.
struct BytePairModel {
  Vocabulary vocabulary;  // finished
  PairTable merges;       // ids of two tokens -> rank and id of the merged one
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;
  bool byte_fallback = false;  // a character without a token becomes tokens <0x00> … <0xFF>
  bool byte_level = true;  // symbols are characters that stand for bytes; false: plain characters
  bool ignore_merges = false;  // a piece that is a token is encoded as that token
};

// Merges neighbours, lowest rank first and leftmost first among equals, in n log n for n bytes.
// Immutable; any thread may use it.
class BytePairs {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;  // no token, no index

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

    void add_symbol(std::uint32_t id);
  };

  explicit BytePairs(BytePairModel model);

  const Vocabulary& vocabulary() const { return model_.vocabulary; }
  // True if no byte of a piece can be missing in its tokens.
  bool has_all_bytes() const;

  // Appends the tokens of `piece`, valid UTF-8 of less than 4 GiB. A byte or character without a
  // token becomes the unknown token, or is omitted if the model names none. Throws Error (kBundle)
  // if the vocabulary lacks the unknown token.
  void encode(std::string_view piece, std::vector<std::int64_t>& token_ids,
              Workspace& workspace) const;

 private:
  // Writes a piece as the tokens of its bytes or characters.
  void split(std::string_view piece, Workspace& workspace) const;
  // Writes the byte-fallback tokens of a symbol; returns false if a byte has none.
  bool split_bytes(std::string_view symbol, Workspace& workspace) const;
  // Returns the token of the symbol at the start of `piece`, or kNone, and moves `piece` past the
  // symbol.
  std::uint32_t take_symbol(std::string_view& piece, std::string_view& symbol) const;
  std::uint32_t unknown_id() const;
  void consider(std::uint32_t left, Workspace& workspace) const;
  void merge_all(Workspace& workspace) const;

  BytePairModel model_;
  std::array<std::uint32_t, 256> symbol_ids_{};    // of bytes or ASCII; kNone: no token
  std::array<std::uint32_t, 256> fallback_ids_{};  // of <0x00> … <0xFF>; kNone: no token
  std::uint32_t unknown_id_ = kNone;
};

}  // namespace skipdec::runtime
