// Beginnings of prompts whose keys and values are kept, so that they are computed once.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "constants.h"
#include "kv/cache_pair.h"

namespace skipdec::runtime {

constexpr std::int64_t kBlockTokens = constants::kPrefixBlockTokens;  // tokens of a kept block

// Keys and values of prompts' beginnings, in all layers; the least recently used go first.
//
// A position's keys and values depend on the tokens up to it alone, where every layer runs on the
// whole prompt. So a prompt that begins like one before takes them over and runs the rest. It finds
// the beginnings of its ``owner`` alone: whoever may not learn, from how long its own prompts take,
// what others sent is an owner of its own.
class PrefixCache {
 public:
  // Some tokens of a prompt behind those of ``parent``, and what all layers made of them.
  struct Block;
  using BlockPointer = std::shared_ptr<Block>;

  PrefixCache(BufferPool& pool, const KVLayout& layout, std::int64_t num_layers);
  ~PrefixCache();

  // Bytes of the pool that are kept.
  std::int64_t nbytes() const { return num_held_ * block_bytes_; }
  // Keeps at most so many bytes from now on, dropping what is beyond.
  void set_limit(std::int64_t nbytes);
  // The longest kept beginning of a prompt, but its last token, which must run.
  std::vector<BlockPointer> find(const std::vector<std::int64_t>& tokens,
                                 const std::string& owner = {});
  // The number of tokens that `find` would find; changes nothing.
  std::int64_t kept_tokens(const std::vector<std::int64_t>& tokens,
                           const std::string& owner = {}) const;
  void clear();

  // New blocks of one prompt, filled a layer at a time while it runs; given up unless committed.
  class Recording {
   public:
    Recording() = default;
    Recording(Recording&&) = default;
    Recording& operator=(Recording&&) = delete;
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

    // Takes over what ``layer`` made: the prompt's ``row`` of ``written``.
    void copy(std::int64_t layer, const CacheView& written, std::int64_t row);
    // All layers have been copied: the blocks can be found.
    void commit();

   private:
    friend class PrefixCache;
    PrefixCache* cache_ = nullptr;
    std::int64_t start_ = 0;
    std::vector<BlockPointer> blocks_;
  };

  // Begins to keep the whole blocks of a prompt that are not kept, as far as there is room.
  Recording record(const std::vector<std::int64_t>& tokens, const std::string& owner = {});

  // Writes what ``layer`` made of ``blocks`` to the first row of ``target``.
  void restore(const std::vector<BlockPointer>& blocks, std::int64_t layer,
               const CacheView& target) const;

 private:
  using Tokens = std::array<std::int64_t, kBlockTokens>;
  struct Key {
    const Block* parent;
    Tokens tokens;
    std::string owner;  // of a prompt's first block; else empty
    bool operator==(const Key& other) const {
      return parent == other.parent && tokens == other.tokens && owner == other.owner;
    }
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  using Blocks = std::list<BlockPointer>;  // the least recently used first

  static Key key_of(const Block& block);
  std::vector<BlockPointer> known(const std::vector<std::int64_t>& tokens, std::size_t end,
                                  const std::string& owner) const;
  void touch(const std::vector<BlockPointer>& blocks);
  bool make_room(std::int64_t nbytes, const std::vector<BlockPointer>& spare);
  void free(const BlockPointer& block);
  CacheView view(const Block& block, std::int64_t layer) const;

  BufferPool& pool_;
  KVLayout layout_;
  std::int64_t block_bytes_;
  std::int64_t limit_ = 0;
  std::int64_t num_held_ = 0;  // blocks, those of recordings included
  Blocks blocks_;
  std::unordered_map<Key, Blocks::iterator, Hash> places_;
};

}  // namespace skipdec::runtime
