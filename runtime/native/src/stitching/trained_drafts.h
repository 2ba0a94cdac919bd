// TrainedDrafts: steps of the bundle's draft layer, after the last pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/slot_cache.h"
#include "stitching/engines.h"
#include "stitching/prompts.h"
#include "stitching/step_buffers.h"

namespace skipdec::runtime {

// One token that a row feeds to the draft layer, at its position in the text.
struct DraftRow {
  SlotCache::Row row = 0;
  std::int64_t token = 0, position = 0;
};

// Runs a draft layer for the rows of a running batch.
//
// The entry of a token consists of its embedding and of the states of the token before it. The
// first step after a pass feeds the tokens that the pass accepted and the one drawn last, with the
// states that the pass kept. Each later step feeds a guess, with the layer's own output instead of
// states. The layer's cache holds the entries one after another, whatever their positions. Tokens
// of prompts, and of passes after which nothing was drafted, have no entries.
//
// All rows in the layer's slots take part in its calls. A row that does not draft feeds token 0
// after its own entries, where its next entry overwrites the result.
//
// Worked: a pass fed a b c at positions 5, 6, 7, and b held, so that d was drawn at position 7.
// With 3 entries so far, the first step feeds b and d at entries 3 and 4, with the states of a and
// b. The second step feeds the guess after d, at entry 5. After the next pass, entries continue at
// 5.
class TrainedDrafts {
 public:
  // All arguments must outlive this object; the engines of trained drafts must be loaded.
  TrainedDrafts(const Engines& engines, const Manifest& manifest, SlotCache& cache,
                std::int64_t max_rows);

  // Stores the result of a pass of ``row`` or of its prompt: ``tokens`` were fed from ``position``
  // on, with ``states`` [tokens, 3, E], which are copied.
  void hold(SlotCache::Row row, std::int64_t position, const TokenSpan& tokens,
            const std::byte* states);
  void drop(SlotCache::Row row) { held_.erase(row); }
  // Forgets all rows and all bindings to slots, because their buffers are about to be freed.
  void clear();
  // Runs a step; see `SlotStitcher::draft_trained`.
  const std::vector<const float*>& step(const std::vector<DraftRow>& rows);
  // The number of bindings made so far, see `Passes::num_bound`.
  std::int64_t num_bound() const { return num_bound_; }
  // The tokens whose logits a step returns, ascending.
  const std::vector<std::int64_t>& token_ids() const { return manifest_.trained_draft->token_ids; }

 private:
  struct Held {
    std::int64_t position = 0;
    TokenSpan tokens;
    std::vector<std::byte> states;  // [tokens, 3, E]
    std::int64_t start = 0;         // entries that the draft layer held before the pass
    std::int64_t fed = 0;           // entries made from these states
    std::vector<std::byte> output;  // [E], of the row's last entry
  };
  // What the row in one of the layer's slots feeds in a step.
  struct Slot {
    const DraftRow* row = nullptr;  // nullptr: the row does not draft
    Held* held = nullptr;
    bool is_first = false;  // the row's first step after its last pass
    std::size_t count = 1;  // tokens, which become entries from ``start`` on
    std::int64_t start = 0;
    std::int64_t last_token = 0, position = 0;  // the last of the tokens, and its position
    // Tokens before the last one are those of the pass, from its second on.
    std::int64_t token(std::size_t index) const {
      return index + 1 == count ? last_token : held->tokens[index + 1];
    }
  };
  // session, rows, tokens or chosen ones, slot
  using Shape = std::tuple<const Session*, std::size_t, std::size_t, std::size_t>;
  struct Bound {
    std::uint64_t generation = 0;
    std::unique_ptr<Binding> binding;
  };

  void lay_out(const std::vector<DraftRow>& rows);
  void reserve_buffers(std::size_t tokens);
  void embed();
  void make_states();
  void join();
  void run_layer();
  void score(const std::vector<DraftRow>& rows);
  Binding* joining(Session& session, const Buffer& given, std::int64_t states, std::byte* made,
                   std::size_t tokens);
  Binding* layer_binding(std::size_t rows, std::size_t tokens, std::size_t slot);
  std::size_t num_tokens() const { return slots_.size() * longest_; }

  const Engines& engines_;
  const Manifest& manifest_;
  SlotCache& cache_;
  std::int64_t layer_, hidden_size_;
  StepBuffers all_;
  Buffer read_, made_, joined_;  // [size, 3, E], [size, E], [size, 2, E]
  std::unordered_map<SlotCache::Row, Held> held_;
  std::vector<Slot> slots_;  // of the present step
  std::size_t longest_ = 1;  // tokens of its rows, with padding
  std::map<Shape, Bound> bound_;
  std::int64_t num_bound_ = 0;
  std::vector<const float*> logits_;  // of the last step
};

}  // namespace skipdec::runtime
