// The tokens of a model, by id and by text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skipdec::runtime {

// Texts one behind another.
class TextList {
 public:
  void add(std::string_view text);
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t place) const {
    const std::size_t start = place == 0 ? 0 : ends_[place - 1];
    return std::string_view(characters_).substr(start, ends_[place] - start);
  }

 private:
  std::string characters_;
  std::vector<std::uint32_t> ends_;
};

class Vocabulary {
 public:
  // Takes tokens until `finish`.
  void add(std::string_view text, std::uint32_t id);

  // Makes tokens findable. A text or id that comes twice is returned as a problem; else "".
  std::string finish();

  std::size_t size() const { return ids_.size(); }
  std::optional<std::uint32_t> id_of(std::string_view text) const;
  // By place, in the order of the ids.
  std::uint32_t id_at(std::size_t place) const { return ids_[place]; }
  std::string_view text_at(std::size_t place) const { return texts_[order_[place]]; }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;

  std::size_t slot_of(std::string_view text) const;

  TextList texts_;                            // as they came
  std::vector<std::uint32_t> ids_;            // ascending, once finished
  std::vector<std::uint32_t> order_;          // of ids_: which text
  std::vector<std::uint32_t> slots_{kEmpty};  // places; a power of two, half of them empty
};

}  // namespace skipdec::runtime
