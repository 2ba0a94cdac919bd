// Prompts: many tokens of a row in one call of each engine, as a whole or in chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/schedule.h"
#include "stitching/engines.h"

namespace skipdec::runtime {

using TokenSpan = std::vector<std::int64_t>;
// Returns the number of each row's first tokens that run a layer: [rows].
using ActiveLengths = std::function<std::vector<std::int64_t>(std::int64_t layer)>;
// Returns the caches that a layer writes; called before it runs.
using LayerCaches = std::function<CacheView(std::int64_t layer)>;
// Called after a layer has written.
using AfterLayer = std::function<void(std::int64_t layer)>;

// float32 [rows, V], owned.
class Logits {
 public:
  Logits(std::int64_t rows, std::int64_t vocab_size)
      : rows_(rows),
        vocab_size_(vocab_size),
        memory_(rows * vocab_size * static_cast<std::int64_t>(sizeof(float))) {}

  std::int64_t rows() const { return rows_; }
  float* row(std::int64_t index) const {
    void* const first = memory_.data();
    return static_cast<float*>(first) + index * vocab_size_;
  }

 private:
  std::int64_t rows_, vocab_size_;
  Buffer memory_;
};

// Runs prompts and scored texts on the engines of a bundle.
class Prompts {
 public:
  Prompts(const Engines& engines, const Manifest& manifest);

  // Runs prompts into empty caches. Returns logits [rows, V] of each prompt's last token.
  Logits prefill(const std::vector<const TokenSpan*>& prompts, const ActiveLengths& active_lengths,
                 const LayerCaches& caches, const AfterLayer& after);

  // Runs ``tokens`` of one prompt, at positions from ``start`` on, on their caches.
  // ``active_lengths`` counts the prompt's tokens from its first on. With int8 products, the bits
  // equal those of the whole prompt at once. Returns logits [1, V] if this is the prompt's last
  // chunk, else [0, V].
  Logits chunk(const TokenSpan& tokens, std::int64_t start, const ActiveLengths& active_lengths,
               const LayerCaches& caches, bool is_last);

  // Returns the states [3, E] of a prompt's last token for trained drafts: of prompt number ``row``
  // of the last `prefill`, or of the prompt of the last `chunk`.
  const std::byte* end_states(std::size_t row) const {
    return end_states_.data() +
           row * engines_.reads.size() * static_cast<std::size_t>(token_bytes_);
  }

  // Teacher-forces one row, each layer on its active prefix; all layers write to ``scratch``.
  // Passes logits [<= 64, V] of positions ``first`` ... ``first + count`` - 1 to ``take``, in
  // order.
  void score(const TokenSpan& tokens, const std::vector<std::int64_t>& active_lengths,
             std::int64_t first, std::int64_t count, const CacheView& scratch,
             const std::function<void(const Logits&)>& take);

 private:
  struct Hidden {  // [rows, length, E], dense
    std::int64_t rows, length;
    Buffer memory;
    std::vector<std::int64_t> last;  // [rows], the place of each row's last token
  };

  Hidden run(
      const std::vector<const TokenSpan*>& prompts, std::int64_t start,
      const ActiveLengths& active_lengths, const LayerCaches& caches,
      const AfterLayer& after = [](std::int64_t) {});
  Hidden embed(const std::vector<const TokenSpan*>& rows, std::int64_t start);
  void keep_states(std::int64_t layers, const Hidden& hidden);
  void run_layer(std::int64_t layer, std::byte* hidden_states, std::int64_t padded,
                 const CacheView& cache, const std::vector<std::int64_t>& lengths,
                 std::int64_t start);
  void run_prefixes(std::int64_t layer, Hidden& hidden, const CacheView& cache,
                    const std::vector<std::int64_t>& active, std::int64_t start);
  Logits gather_logits(const Hidden& hidden, std::vector<std::int64_t> row_positions);

  const Engines& engines_;
  KVLayout layout_;
  std::int64_t hidden_size_, vocab_size_, token_bytes_;
  std::vector<std::byte> end_states_;  // [rows, 3, E]
};

}  // namespace skipdec::runtime
