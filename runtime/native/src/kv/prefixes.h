// A cache of the keys and values of prompt prefixes.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "constants.h"
#include "keyed_hash.h"
#include "kv/cache_pair.h"

namespace skipdec::runtime {

constexpr std::int64_t kBlockTokens = constants::kPrefixBlockTokens;  // tokens of a kept block

// Keeps the keys and values of prompt prefixes in all layers; evicts the least recently used.
//
// If every layer runs on the whole prompt, a position's keys and values depend only on the tokens
// up to it. A prompt that begins like an earlier one therefore copies them and runs only the rest.
// A prompt finds only prefixes of its ``owner``, so that clients with different owners cannot learn
// from the time of their prompts what others sent.
class PrefixCache {
 public:
  // Tokens of a prompt after those of ``parent``, with their keys and values in all layers.
  struct Block;
  using BlockPointer = std::shared_ptr<Block>;

  PrefixCache(BufferPool& pool, const KVLayout& layout, std::int64_t num_layers);
  ~PrefixCache();

  // Returns the bytes of the pool that kept blocks take.
  std::int64_t nbytes() const { return num_held_ * block_bytes_; }
  // Evicts blocks until at most ``nbytes`` are kept, now and from now on.
  void set_limit(std::int64_t nbytes);
  // Returns the longest kept prefix of a prompt, without the last token, which must run, and marks
  // it as used.
  std::vector<BlockPointer> find(const std::vector<std::int64_t>& tokens,
                                 const std::string& owner = {});
  void clear();

  // New blocks of one prompt, filled layer by layer while it runs; discarded unless committed.
  class Recording {
   public:
    Recording() = default;
    Recording(Recording&&) = default;
    Recording& operator=(Recording&&) = delete;
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

    // Copies the keys and values of ``layer`` from the prompt's ``row`` of ``written``.
    void copy(std::int64_t layer, const CacheView& written, std::int64_t row);
    // Makes the blocks available to `find`; call it after copying all layers.
    void commit();

   private:
    friend class PrefixCache;
    PrefixCache* cache_ = nullptr;
    std::int64_t start_ = 0;
    std::vector<BlockPointer> blocks_;  // nullptr: the block is committed
  };

  // Begins to record the complete blocks of a prompt that are not kept yet, if they fit.
  Recording record(const std::vector<std::int64_t>& tokens, const std::string& owner = {});

  // Writes the keys and values of ``blocks`` in ``layer`` to the first row of ``target``.
  void restore(const std::vector<BlockPointer>& blocks, std::int64_t layer,
               const CacheView& target) const;

 private:
  using Tokens = std::array<std::int64_t, kBlockTokens>;
  struct Key {
    const Block* parent;
    Tokens tokens;
    std::string owner;  // empty unless it is a prompt's first block
    bool operator==(const Key& other) const {
      return parent == other.parent && tokens == other.tokens && owner == other.owner;
    }
  };
  struct Hash {
    KeyedHash keyed;  // clients choose tokens
    std::size_t operator()(const Key& key) const;
  };
  using Blocks = std::list<BlockPointer>;  // the least recently used first

  static Key key_of(const Block& block);
  std::vector<BlockPointer> use(const std::vector<std::int64_t>& tokens, std::size_t end,
                                const std::string& owner);
  bool make_room(std::int64_t nbytes, const std::vector<BlockPointer>& spare);
  void free(const BlockPointer& block) noexcept;
  CacheView view(const Block& block, std::int64_t layer) const;

  BufferPool& pool_;
  KVLayout layout_;
  std::int64_t block_bytes_;
  std::int64_t limit_ = 0;
  std::int64_t num_held_ = 0;  // blocks, including those of recordings
  Blocks blocks_;
  std::unordered_map<Key, Blocks::iterator, Hash> places_;
};

}  // namespace skipdec::runtime
