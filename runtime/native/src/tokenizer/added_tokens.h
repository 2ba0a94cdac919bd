// Added tokens: they match their text wherever it occurs, before any piece is encoded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pair_table.h"

namespace skipdec::runtime {

// An entry of `added_tokens` in tokenizer.json.
struct AddedToken {
  std::string content;
  std::uint32_t id = 0;
  bool single_word = false;  // does not match beside a letter, digit or underscore
  bool lstrip = false;       // includes the spaces before it
  bool rstrip = false;       // includes the spaces after it
  bool normalized = false;   // matched after the others, in the text between them
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

  // Splits `text`, valid UTF-8, into segments; "" has none.
  std::vector<TextSegment> segments(std::string_view text) const;

 private:
  // Finds the longest of several texts that occurs at a position.
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

  void find(std::string_view text, TextSegment part, const Trie& trie,
            std::vector<TextSegment>& found) const;

  std::vector<AddedToken> tokens_;
  Trie first_, second_;  // values are indices into tokens_; second_: normalized ones
};

}  // namespace skipdec::runtime
