#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/text/characters.h"

namespace skipdec::runtime {
namespace {

// True if the part [start, end) of `text` is a single word within `sentence`, which contains it.
bool is_single_word(std::string_view sentence, std::size_t start, std::size_t end) {
  if (start > 0) {
    std::size_t before = start_of_last_character(sentence, start);
    if ((classes_of(next_character(sentence, before)) & kWord) != 0) return false;
  }
  if (end == sentence.size()) return true;
  return (classes_of(next_character(sentence, end)) & kWord) == 0;
}

std::size_t end_of_stripped(std::string_view sentence, std::size_t at) {
  while (at < sentence.size()) {
    std::size_t behind = at;
    if ((classes_of(next_character(sentence, behind)) & kStripped) == 0) break;
    at = behind;
  }
  return at;
}

std::size_t start_of_stripped(std::string_view sentence, std::size_t at, std::size_t least) {
  while (at > least) {
    const std::size_t start = start_of_last_character(sentence, at);
    std::size_t place = start;
    if ((classes_of(next_character(sentence, place)) & kStripped) == 0) break;
    at = start;
  }
  return at;
}

}  // namespace

void AddedTokens::Trie::add(std::string_view text, std::uint32_t value) {
  starts_[static_cast<std::uint8_t>(text.front())] = true;
  std::uint32_t node = 0;
  for (const char raw : text) {
    const auto byte = static_cast<std::uint8_t>(raw);
    if (const PairTable::Value* child = children_.find(node, byte)) {
      node = child->id;
    } else {
      children_.put(node, byte, {0, num_nodes_});
      node = num_nodes_++;
    }
  }
  values_.put(node, 0, {0, value});
}

AddedTokens::Trie::Match AddedTokens::Trie::longest(std::string_view text, std::size_t at) const {
  Match best;
  std::uint32_t node = 0;
  for (std::size_t end = at; end < text.size();) {
    const PairTable::Value* child = children_.find(node, static_cast<std::uint8_t>(text[end]));
    if (child == nullptr) break;
    node = child->id;
    ++end;
    if (const PairTable::Value* value = values_.find(node, 0)) best = {end - at, value->id};
  }
  return best;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (std::uint32_t place = 0; place < tokens_.size(); ++place)
    (tokens_[place].normalized ? second_ : first_).add(tokens_[place].text, place);
}

std::vector<TextSegment> AddedTokens::find(std::string_view sentence, const Trie& trie) const {
  std::vector<TextSegment> found;
  std::size_t returned = 0;  // end of the last segment; spaces included by rstrip may match again
  std::size_t spaces = 0, spaces_end = 0;  // the last run of spaces that was scanned
  std::size_t at = trie.empty() ? sentence.size() : 0;
  while (at < sentence.size()) {
    const Trie::Match match =
        trie.may_start(sentence[at]) ? trie.longest(sentence, at) : Trie::Match{};
    if (match.length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match.value];
    std::size_t start = at, end = at + match.length;
    at = end;
    if (token.single_word && !is_single_word(sentence, start, end)) continue;
    if (token.lstrip) start = start_of_stripped(sentence, start, returned);
    if (token.rstrip) {
      if (end < spaces || end > spaces_end) spaces_end = end_of_stripped(sentence, spaces = end);
      end = spaces_end;
    }
    if (returned < start) found.push_back({returned, start, std::nullopt});
    found.push_back({start, end, token.id});
    returned = end;
  }
  if (returned != sentence.size()) found.push_back({returned, sentence.size(), std::nullopt});
  return found;
}

}  // namespace skipdec::runtime
