#include "tokenizer/token_bytes.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text/byte_alphabet.h"

namespace skipdec::runtime {

TokenBytes::TokenBytes(const Vocabulary& vocabulary, const std::vector<AddedToken>& added) {
  std::map<std::uint32_t, const AddedToken*> rest;
  for (const AddedToken& token : added) rest.emplace(token.id, &token);
  std::string bytes;
  const auto add = [&](std::uint32_t id, std::string_view text, bool special) {
    bytes.clear();
    append_bytes(text, bytes);
    ids_.push_back(id);
    bytes_.add(bytes);
    special_.push_back(special);
  };
  auto next = rest.begin();
  for (std::size_t place = 0; place < vocabulary.size(); ++place) {
    const std::uint32_t id = vocabulary.id_at(place);
    for (; next != rest.end() && next->first < id; ++next)
      add(next->first, next->second->content, next->second->special);
    if (next != rest.end() && next->first == id) {
      add(id, next->second->content, next->second->special);  // overrides the model's token
      ++next;
    } else {
      add(id, vocabulary.text_at(place), false);
    }
  }
  for (; next != rest.end(); ++next) add(next->first, next->second->content, next->second->special);
}

std::string_view TokenBytes::of(std::int64_t token_id) const {
  const std::size_t place = place_of(token_id);
  return place < ids_.size() ? bytes_[place] : std::string_view();
}

bool TokenBytes::is_special(std::int64_t token_id) const {
  const std::size_t place = place_of(token_id);
  return place < ids_.size() && special_[place];
}

std::size_t TokenBytes::place_of(std::int64_t token_id) const {
  if (token_id < 0 || ids_.empty() || token_id > ids_.back()) return ids_.size();
  const auto id = static_cast<std::uint32_t>(token_id);
  if (id < ids_.size() && ids_[id] == id) return id;  // the usual case: ids without gaps
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), id);
  return *found == id ? static_cast<std::size_t>(found - ids_.begin()) : ids_.size();
}

}  // namespace skipdec::runtime
