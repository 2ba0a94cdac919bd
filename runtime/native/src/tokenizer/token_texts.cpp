#include "tokenizer/token_texts.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tokenizer/text/byte_alphabet.h"

namespace skipdec::runtime {

int byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token.back() != '>') return -1;
  std::string_view digits = token.substr(3, 2);
  if (digits.front() == '+') digits.remove_prefix(1);  // the package reads <0x+A>, too
  int byte = 0;
  for (const char digit : digits) {
    const std::size_t value = std::string_view("0123456789abcdefABCDEF").find(digit);
    if (value == std::string_view::npos) return -1;
    byte = 16 * byte + static_cast<int>(value < 16 ? value : value - 6);
  }
  return byte;
}

TokenTexts::TokenTexts(const Vocabulary& vocabulary, const std::vector<AddedToken>& added,
                       DecoderSteps decoder)
    : decoder_(std::move(decoder)) {
  std::map<std::uint32_t, const AddedToken*> rest;
  std::unordered_set<std::string_view> special;  // contents, by which the package identifies them
  for (const AddedToken& token : added) {
    rest.emplace(token.id, &token);
    if (token.special) special.insert(token.content);
  }
  const auto is_special = [&special](const AddedToken& token) {
    return special.count(token.text) > 0;
  };
  auto next = rest.begin();
  for (std::size_t place = 0; place < vocabulary.size(); ++place) {
    const std::uint32_t id = vocabulary.id_at(place);
    for (; next != rest.end() && next->first < id; ++next)
      add(next->first, next->second->text, is_special(*next->second));
    if (next != rest.end() && next->first == id) {
      add(id, next->second->text, is_special(*next->second));  // overrides the model's token
      ++next;
    } else {
      add(id, vocabulary.text_at(place), false);
    }
  }
  for (; next != rest.end(); ++next)
    add(next->first, next->second->text, is_special(*next->second));
}

void TokenTexts::add(std::uint32_t id, std::string_view token, bool special) {
  std::string text;
  int byte = -1;
  if (decoder_.byte_level) {
    append_bytes(token, text);
  } else {
    text = token;
    for (const Replacement& replacement : decoder_.replacements) text = replacement.applied(text);
    if (decoder_.byte_fallback) byte = byte_of(text);
    if (byte >= 0) text.assign(1, static_cast<char>(byte));
  }
  ids_.push_back(id);
  texts_.add(text);
  special_.push_back(special);
  byte_.push_back(byte >= 0);
}

std::string_view TokenTexts::of(std::int64_t token_id) const {
  const std::size_t place = place_of(token_id);
  return place < ids_.size() ? texts_[place] : std::string_view();
}

bool TokenTexts::is_special(std::int64_t token_id) const {
  const std::size_t place = place_of(token_id);
  return place < ids_.size() && special_[place];
}

bool TokenTexts::is_byte(std::int64_t token_id) const {
  const std::size_t place = place_of(token_id);
  return place < ids_.size() && byte_[place];
}

std::size_t TokenTexts::place_of(std::int64_t token_id) const {
  if (token_id < 0 || ids_.empty() || token_id > ids_.back()) return ids_.size();
  const auto id = static_cast<std::uint32_t>(token_id);
  if (id < ids_.size() && ids_[id] == id) return id;  // the usual case: ids without gaps
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), id);
  return *found == id ? static_cast<std::size_t>(found - ids_.begin()) : ids_.size();
}

}  // namespace skipdec::runtime
