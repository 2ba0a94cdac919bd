#include "tokenizer/model/byte_pairs.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.h"
#include "tokenizer/text/byte_alphabet.h"
#include "tokenizer/text/characters.h"

namespace skipdec::runtime {
namespace {

bool comes_later(const BytePairs::Workspace::Merge& left,
                 const BytePairs::Workspace::Merge& right) {
  return left.order > right.order;
}

}  // namespace

BytePairs::BytePairs(BytePairModel model) : model_(std::move(model)) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto id_of = [this](std::string_view token) {
    return model_.vocabulary.id_of(token).value_or(kNone);
  };
  std::string fallback = "<0x00>";
  for (std::size_t byte = 0; byte < symbol_ids_.size(); ++byte) {
    const auto ascii = static_cast<char>(byte);
    symbol_ids_[byte] = id_of(model_.byte_level ? stand_in(static_cast<std::uint8_t>(byte))
                                                : std::string_view(&ascii, 1));
    fallback[3] = kDigits[byte / 16];
    fallback[4] = kDigits[byte % 16];
    fallback_ids_[byte] = model_.byte_fallback ? id_of(fallback) : kNone;
  }
  if (model_.unknown_token) unknown_id_ = id_of(*model_.unknown_token);
}

bool BytePairs::has_all_bytes() const {
  const auto& ids = model_.byte_level ? symbol_ids_ : fallback_ids_;
  return std::find(ids.begin(), ids.end(), kNone) == ids.end();
}

void BytePairs::encode(std::string_view piece, std::vector<std::int64_t>& token_ids,
                       Workspace& workspace) const {
  if (model_.ignore_merges) {
    workspace.text.clear();
    if (model_.byte_level)
      for (const char byte : piece) workspace.text += stand_in(static_cast<std::uint8_t>(byte));
    if (const auto whole = model_.vocabulary.id_of(model_.byte_level ? workspace.text : piece)) {
      token_ids.push_back(*whole);
      return;
    }
  }
  split(piece, workspace);
  merge_all(workspace);
  for (const Workspace::Symbol& symbol : workspace.symbols)
    if (!symbol.merged) token_ids.push_back(symbol.id);
}

void BytePairs::Workspace::add_symbol(std::uint32_t id) {
  const auto index = static_cast<std::uint32_t>(symbols.size());
  symbols.push_back({id, index == 0 ? kNone : index - 1, index + 1, false});
}

void BytePairs::split(std::string_view piece, Workspace& workspace) const {
  workspace.symbols.clear();
  // An unknown token is written when the next symbol has a token, so that byte-fallback tokens come
  // before it, as in the package.
  bool after_unknown = false;
  while (!piece.empty()) {
    std::string_view symbol;
    const std::uint32_t id = take_symbol(piece, symbol);
    const bool unknown = id == kNone;
    if (unknown && (split_bytes(symbol, workspace) || !model_.unknown_token)) continue;
    if (after_unknown && !(unknown && model_.fuse_unknown)) workspace.add_symbol(unknown_id());
    if (!unknown) workspace.add_symbol(id);
    after_unknown = unknown;
  }
  if (after_unknown) workspace.add_symbol(unknown_id());
  if (!workspace.symbols.empty()) workspace.symbols.back().next = kNone;
}

bool BytePairs::split_bytes(std::string_view symbol, Workspace& workspace) const {
  const auto id_of = [this](char byte) { return fallback_ids_[static_cast<std::uint8_t>(byte)]; };
  const auto lacks_token = [&id_of](char byte) { return id_of(byte) == kNone; };
  if (std::any_of(symbol.begin(), symbol.end(), lacks_token)) return false;
  for (const char byte : symbol) workspace.add_symbol(id_of(byte));
  return true;
}

std::uint32_t BytePairs::take_symbol(std::string_view& piece, std::string_view& symbol) const {
  const auto first = static_cast<std::uint8_t>(piece.front());
  if (model_.byte_level) {
    symbol = stand_in(first);
    piece.remove_prefix(1);
    return symbol_ids_[first];
  }
  std::size_t behind = 0;
  next_character(piece, behind);
  symbol = piece.substr(0, behind);
  piece.remove_prefix(behind);
  return behind == 1 ? symbol_ids_[first] : model_.vocabulary.id_of(symbol).value_or(kNone);
}

std::uint32_t BytePairs::unknown_id() const {
  if (unknown_id_ == kNone)
    throw Error(
        Status::kBundle, "tokenizer",
        "has no token for a byte or character of the text, and its unknown token is none: " +
            *model_.unknown_token);
  return unknown_id_;
}

void BytePairs::consider(std::uint32_t left, Workspace& workspace) const {
  const auto& symbols = workspace.symbols;
  const std::uint32_t right = symbols[left].next;
  if (right == kNone) return;
  const PairTable::Value* merge = model_.merges.find(symbols[left].id, symbols[right].id);
  if (merge == nullptr) return;
  workspace.queue.push_back({(std::uint64_t{merge->rank} << 32U) | left, merge->id});
  std::push_heap(workspace.queue.begin(), workspace.queue.end(), comes_later);
}

void BytePairs::merge_all(Workspace& workspace) const {
  auto& symbols = workspace.symbols;
  auto& queue = workspace.queue;
  queue.clear();
  for (std::uint32_t index = 0; index < symbols.size(); ++index) consider(index, workspace);
  while (!queue.empty()) {
    const Workspace::Merge merge = queue.front();
    std::pop_heap(queue.begin(), queue.end(), comes_later);
    queue.pop_back();
    const auto index = static_cast<std::uint32_t>(merge.order);
    Workspace::Symbol& left = symbols[index];
    if (left.merged || left.next == kNone) continue;
    Workspace::Symbol& right = symbols[left.next];
    const PairTable::Value* current = model_.merges.find(left.id, right.id);
    if (current == nullptr || current->id != merge.id) continue;  // an outdated pair
    left.id = merge.id;
    left.next = right.next;
    right.merged = true;
    if (left.next != kNone) symbols[left.next].previous = index;
    if (left.previous != kNone) consider(left.previous, workspace);
    consider(index, workspace);
  }
}

}  // namespace skipdec::runtime
