// Added tokens, which match their text wherever it occurs, before any piece is encoded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/model/pair_table.h"

namespace skipdec::runtime {

// An entry of `added_tokens` in tokenizer.json.
struct AddedToken {
  std::string content;
  std::string text;  // the content; if `normalized`, as the normalizer gives it
  std::uint32_t id = 0;
  bool single_word = false;  // does not match beside a letter, digit or underscore
  bool lstrip = false;       // includes the spaces before it
  bool rstrip = false;       // includes the spaces after it
  bool normalized = false;   // matched after the others, in the normalized text between them
  bool special = false;      // omitted from decoded text on request
};

// Part of a text: an added token, or the text between two of them.
struct TextSegment {
  std::size_t start = 0, end = 0;
  std::optional<std::uint32_t> token_id;
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  const std::vector<AddedToken>& tokens() const { return tokens_; }

  // Splits a text, valid UTF-8, at tokens that are matched before it is normalized; "" has no
  // segments.
  std::vector<TextSegment> in_text(std::string_view text) const { return find(text, first_); }
  // Splits a normalized text between two such tokens at the tokens that are matched in normalized
  // text.
  std::vector<TextSegment> in_normalized(std::string_view text) const {
    return find(text, second_);
  }

 private:
  // Finds the longest of its texts that occurs at a position.
  class Trie {
   public:
    void add(std::string_view text, std::uint32_t value);
    // Result of a search; the length is 0 if nothing matches.
    struct Match {
      std::size_t length = 0;
      std::uint32_t value = 0;
    };
    Match longest(std::string_view text, std::size_t at) const;
    bool may_start(char byte) const { return starts_[static_cast<std::uint8_t>(byte)]; }
    bool empty() const { return num_nodes_ == 1; }

   private:
    PairTable children_;  // node, byte -> node
    PairTable values_;    // node, 0 -> value
    std::uint32_t num_nodes_ = 1;
    std::array<bool, 256> starts_{};
  };

  std::vector<TextSegment> find(std::string_view sentence, const Trie& trie) const;

  std::vector<AddedToken> tokens_;
  Trie first_, second_;  // values are indices into tokens_; second_: normalized ones
};

}  // namespace skipdec::runtime
