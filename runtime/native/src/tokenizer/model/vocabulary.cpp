#include "tokenizer/model/vocabulary.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skipdec::runtime {
namespace {

std::uint64_t hash_of(std::string_view text, const KeyedHash& keyed) {
  std::uint64_t hash = keyed.of(text.size());
  for (; text.size() > sizeof(hash); text.remove_prefix(sizeof(hash))) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, text.data(), sizeof(eight));
    hash = keyed.joined(hash, eight);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, text.data(), text.size());
  return keyed.joined(hash, rest);
}

}  // namespace

void TextList::add(std::string_view text) {
  characters_ += text;
  ends_.push_back(static_cast<std::uint32_t>(characters_.size()));
}

void Vocabulary::add(std::string_view text, std::uint32_t id) {
  texts_.add(text);
  ids_.push_back(id);
}

std::string Vocabulary::finish() {
  order_.resize(size());
  std::iota(order_.begin(), order_.end(), 0U);
  if (!std::is_sorted(ids_.begin(), ids_.end())) {
    std::sort(order_.begin(), order_.end(),
              [this](std::uint32_t left, std::uint32_t right) { return ids_[left] < ids_[right]; });
    std::sort(ids_.begin(), ids_.end());
  }
  const auto twice = std::adjacent_find(ids_.begin(), ids_.end());
  if (twice != ids_.end()) return "two tokens have the id " + std::to_string(*twice);
  std::size_t slots = 16;
  while (slots < 2 * size()) slots *= 2;
  slots_.assign(slots, kEmpty);
  for (std::size_t index = 0; index < size(); ++index) {
    std::uint32_t& slot = slots_[slot_of(text_at(index))];
    if (slot != kEmpty) return "the token " + std::string(text_at(index)) + " comes twice";
    slot = static_cast<std::uint32_t>(index);
  }
  return "";
}

std::optional<std::uint32_t> Vocabulary::id_of(std::string_view text) const {
  const std::uint32_t index = slots_[slot_of(text)];
  return index == kEmpty ? std::nullopt : std::optional(ids_[index]);
}

std::size_t Vocabulary::slot_of(std::string_view text) const {
  std::size_t slot = hash_of(text, hash_) & (slots_.size() - 1);
  while (slots_[slot] != kEmpty && text_at(slots_[slot]) != text)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

}  // namespace skipdec::runtime
