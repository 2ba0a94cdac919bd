// The tokens of a model, by id and by text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "keyed_hash.h"

namespace skipdec::runtime {

// Texts stored back to back.
class TextList {
 public:
  void add(std::string_view text);
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t index) const {
    const std::size_t start = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(characters_).substr(start, ends_[index] - start);
  }

 private:
  std::string characters_;
  std::vector<std::uint32_t> ends_;
};

class Vocabulary {
 public:
  // Adds a token, only before `finish`.
  void add(std::string_view text, std::uint32_t id);

  // Builds the index. Returns "", or a problem if a text or an id occurs twice.
  std::string finish();

  std::size_t size() const { return ids_.size(); }
  std::optional<std::uint32_t> id_of(std::string_view text) const;
  // Tokens are numbered by ``index`` in ascending order of ids.
  std::uint32_t id_at(std::size_t index) const { return ids_[index]; }
  std::string_view text_at(std::size_t index) const { return texts_[order_[index]]; }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;

  std::size_t slot_of(std::string_view text) const;

  KeyedHash hash_;
  TextList texts_;                            // in the order of `add`
  std::vector<std::uint32_t> ids_;            // ascending after `finish`
  std::vector<std::uint32_t> order_;          // index of the text for each entry of ids_
  std::vector<std::uint32_t> slots_{kEmpty};  // hash table of places, at most half full
};

}  // namespace skipdec::runtime
