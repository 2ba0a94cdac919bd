#include "tokenizer/byte_pairs.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.h"
#include "tokenizer/text/byte_alphabet.h"

namespace skipdec::runtime {
namespace {

bool comes_later(const BytePairs::Workspace::Merge& left,
                 const BytePairs::Workspace::Merge& right) {
  return left.order > right.order;
}

}  // namespace

BytePairs::BytePairs(BytePairModel model) : model_(std::move(model)) {
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte)
    byte_ids_[byte] =
        model_.vocabulary.id_of(stand_in(static_cast<std::uint8_t>(byte))).value_or(kNone);
  if (model_.unknown_token)
    unknown_id_ = model_.vocabulary.id_of(*model_.unknown_token).value_or(kNone);
}

bool BytePairs::has_all_bytes() const {
  return std::find(byte_ids_.begin(), byte_ids_.end(), kNone) == byte_ids_.end();
}

void BytePairs::encode(std::string_view piece, std::vector<std::int64_t>& token_ids,
                       Workspace& workspace) const {
  if (model_.ignore_merges) {
    workspace.text.clear();
    for (const char byte : piece) workspace.text += stand_in(static_cast<std::uint8_t>(byte));
    if (const auto whole = model_.vocabulary.id_of(workspace.text)) {
      token_ids.push_back(*whole);
      return;
    }
  }
  split(piece, workspace);
  merge_all(workspace);
  for (const Workspace::Symbol& symbol : workspace.symbols)
    if (!symbol.merged) token_ids.push_back(symbol.id);
}

void BytePairs::split(std::string_view piece, Workspace& workspace) const {
  auto& symbols = workspace.symbols;
  symbols.clear();
  bool after_unknown = false;
  for (const char byte : piece) {
    std::uint32_t id = byte_ids_[static_cast<std::uint8_t>(byte)];
    const bool unknown = id == kNone;
    if (unknown) {
      if (!model_.unknown_token) continue;  // omitted
      if (unknown_id_ == kNone)
        throw Error(Status::kBundle, "tokenizer",
                    "has no token for a byte of the text, and its unknown token is none: " +
                        *model_.unknown_token);
      id = unknown_id_;
    }
    if (!(unknown && after_unknown && model_.fuse_unknown)) {
      const auto place = static_cast<std::uint32_t>(symbols.size());
      symbols.push_back({id, place == 0 ? kNone : place - 1, place + 1, false});
    }
    after_unknown = unknown;
  }
  if (!symbols.empty()) symbols.back().next = kNone;
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
  for (std::uint32_t place = 0; place < symbols.size(); ++place) consider(place, workspace);
  while (!queue.empty()) {
    const Workspace::Merge merge = queue.front();
    std::pop_heap(queue.begin(), queue.end(), comes_later);
    queue.pop_back();
    const auto place = static_cast<std::uint32_t>(merge.order);
    Workspace::Symbol& left = symbols[place];
    if (left.merged || left.next == kNone) continue;
    Workspace::Symbol& right = symbols[left.next];
    const PairTable::Value* current = model_.merges.find(left.id, right.id);
    if (current == nullptr || current->id != merge.id) continue;  // an outdated pair
    left.id = merge.id;
    left.next = right.next;
    right.merged = true;
    if (left.next != kNone) symbols[left.next].previous = place;
    if (left.previous != kNone) consider(left.previous, workspace);
    consider(place, workspace);
  }
}

}  // namespace skipdec::runtime
