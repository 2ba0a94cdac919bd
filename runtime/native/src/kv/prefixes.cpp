#include "kv/prefixes.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {

struct PrefixCache::Block {
  BlockPointer parent;
  Tokens tokens{};
  Buffer memory;              // [L, 2, N, kBlockTokens, W], keys and values
  std::int64_t children = 0;  // including those that are being recorded: they need their parent
  std::string owner;          // empty unless it is a prompt's first block
};

PrefixCache::Key PrefixCache::key_of(const Block& block) {
  return {block.parent.get(), block.tokens, block.owner};
}

PrefixCache::PrefixCache(BufferPool& pool, const KVLayout& layout, std::int64_t num_layers)
    : pool_(pool),
      layout_(layout),
      block_bytes_(pooled_size(2 * num_layers * layout.nbytes(1, kBlockTokens))) {}

PrefixCache::~PrefixCache() { clear(); }

void PrefixCache::set_limit(std::int64_t nbytes) {
  limit_ = nbytes;
  make_room(0, {});
}

std::vector<PrefixCache::BlockPointer> PrefixCache::find(const std::vector<std::int64_t>& tokens,
                                                         const std::string& owner) {
  return use(tokens, tokens.size() - 1, owner);
}

// Returns the kept blocks among the first ``end`` tokens, and marks them as used; a block counts as
// used whenever a block after it is used.
std::vector<PrefixCache::BlockPointer> PrefixCache::use(const std::vector<std::int64_t>& tokens,
                                                        std::size_t end, const std::string& owner) {
  std::vector<BlockPointer> found;
  std::vector<Blocks::iterator> places;
  const Block* parent = nullptr;
  for (std::size_t start = 0; start + kBlockTokens <= end; start += kBlockTokens) {
    Key key{parent, {}, parent == nullptr ? owner : std::string()};
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(start), kBlockTokens,
                key.tokens.begin());
    const auto place = places_.find(key);
    if (place == places_.end()) break;
    found.push_back(*place->second);
    parent = found.back().get();
    places.push_back(place->second);
  }
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    blocks_.splice(blocks_.end(), blocks_, *place);
  }
  return found;
}

PrefixCache::Recording PrefixCache::record(const std::vector<std::int64_t>& tokens,
                                           const std::string& owner) {
  Recording recording;
  recording.cache_ = this;
  const std::vector<BlockPointer> kept = use(tokens, tokens.size(), owner);
  recording.start_ = static_cast<std::int64_t>(kept.size()) * kBlockTokens;
  BlockPointer parent = kept.empty() ? nullptr : kept.back();
  for (std::size_t start = kept.size() * kBlockTokens; start + kBlockTokens <= tokens.size();
       start += kBlockTokens) {
    if (!make_room(block_bytes_, kept)) break;
    auto block = std::make_shared<Block>();
    block->parent = parent;
    if (parent == nullptr) block->owner = owner;
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(start), kBlockTokens,
                block->tokens.begin());
    recording.blocks_.reserve(tokens.size() / kBlockTokens);  // so that every block held is listed
    try {
      block->memory = pool_.acquire(block_bytes_);
    } catch (const Error&) {  // no more memory; rows work without a recording
      break;
    }
    ++num_held_;
    if (parent) ++parent->children;
    recording.blocks_.push_back(block);
    parent = std::move(block);
  }
  return recording;
}

PrefixCache::Recording::~Recording() {
  for (const BlockPointer& block : blocks_) {
    if (block != nullptr) cache_->free(block);
  }
}

void PrefixCache::Recording::copy(std::int64_t layer, const CacheView& written, std::int64_t row) {
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    const std::int64_t start = start_ + static_cast<std::int64_t>(index) * kBlockTokens;
    const std::int64_t offset = start * cache_->layout_.position_bytes();
    const CacheView shifted{written.key + offset, written.value + offset, written.rows,
                            written.capacity};
    copy_positions(cache_->layout_, shifted, row, cache_->view(*blocks_[index], layer), 0,
                   kBlockTokens);
  }
}

void PrefixCache::Recording::commit() {
  for (BlockPointer& block : blocks_) {
    Blocks kept{block};
    // Another prompt of the same call may have recorded this block and those after it.
    if (!cache_->places_.emplace(key_of(*block), kept.begin()).second) return;
    cache_->blocks_.splice(cache_->blocks_.end(), kept);
    block.reset();
  }
}

void PrefixCache::restore(const std::vector<BlockPointer>& blocks, std::int64_t layer,
                          const CacheView& target) const {
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    const std::int64_t offset =
        static_cast<std::int64_t>(index) * kBlockTokens * layout_.position_bytes();
    const CacheView shifted{target.key + offset, target.value + offset, 1, target.capacity};
    copy_positions(layout_, view(*blocks[index], layer), 0, shifted, 0, kBlockTokens);
  }
}

void PrefixCache::clear() {
  for (const BlockPointer& block : blocks_) free(block);
  places_.clear();
  blocks_.clear();
}

// Evicts least recently used blocks, except ``spare``, until ``nbytes`` more are allowed.
bool PrefixCache::make_room(std::int64_t nbytes, const std::vector<BlockPointer>& spare) {
  while (this->nbytes() + nbytes > limit_) {
    const auto oldest = std::find_if(blocks_.begin(), blocks_.end(), [&](const BlockPointer& each) {
      return each->children == 0 && std::find(spare.begin(), spare.end(), each) == spare.end();
    });
    if (oldest == blocks_.end()) return false;
    places_.erase(key_of(**oldest));  // may throw
    const BlockPointer block = std::move(*oldest);
    blocks_.erase(oldest);
    free(block);
  }
  return true;
}

void PrefixCache::free(const BlockPointer& block) noexcept {
  pool_.release(std::move(block->memory));
  --num_held_;
  if (block->parent) --block->parent->children;
}

CacheView PrefixCache::view(const Block& block, std::int64_t layer) const {
  const std::int64_t half = layout_.nbytes(1, kBlockTokens);
  std::byte* const key = block.memory.data() + 2 * layer * half;
  return {key, key + half, 1, kBlockTokens};
}

std::size_t PrefixCache::Hash::operator()(const Key& key) const {
  std::uint64_t hash =
      keyed.joined(std::hash<const void*>{}(key.parent), std::hash<std::string>{}(key.owner));
  for (const std::int64_t token : key.tokens) {
    hash = keyed.joined(hash, static_cast<std::uint64_t>(token));
  }
  return hash;
}

}  // namespace skipdec::runtime
