// TrainedDrafts: steps of the bundle's draft layer, behind the states of the last pass.
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
// The entry of a token is made of its embedding and of the states of the token before it. The first
// step behind a pass feeds the tokens that the pass accepted and the one drawn last, with the
// states that the pass left; each later step feeds a guess, with the layer's own output in their
// place. The layer's cache holds the entries one behind the other, whatever their positions: tokens
// without one, those of prompts and of passes behind which nothing was drafted, are left out.
//
// All rows in the layer's slots take part in its calls. One that does not draft feeds token 0
// behind its own entries, where its next entry overwrites what is written.
//
// Worked: a pass fed a b c at positions 5, 6, 7, and b held, so that d was drawn at position 7.
// With 3 entries so far, the first step feeds b and d at entries 3 and 4, with the states of a and
// b, and the second the guess behind d, at entry 5. Behind the next pass entries go on at 5.
class TrainedDrafts {
 public:
  // All arguments outlive this; the engines of trained drafts are loaded.
  TrainedDrafts(const Engines& engines, const Manifest& manifest, SlotCache& cache,
                std::int64_t max_rows);

  // Takes what a pass of ``row``, or its prompt, left: ``tokens`` were fed from ``position`` on,
  // with ``states`` [tokens, 3, E], which are copied.
  void hold(SlotCache::Row row, std::int64_t position, const TokenSpan& tokens,
            const std::byte* states);
  void drop(SlotCache::Row row) { held_.erase(row); }
  // Forgets all rows and all bindings to slots, whose buffers are about to be freed.
  void clear();
  // Runs a step; see `SlotStitcher::draft_trained`.
  const std::vector<const float*>& step(const std::vector<DraftRow>& rows);
  // The bindings made so far, see `Passes::num_bound`.
  std::int64_t num_bound() const { return num_bound_; }
  // The tokens whose logits a step returns, ascending.
  const std::vector<std::int64_t>& token_ids() const { return manifest_.trained_draft->token_ids; }

 private:
  struct Held {
    std::int64_t position = 0;
    TokenSpan tokens;
    std::vector<std::byte> states;  // [tokens, 3, E]
    std::int64_t start = 0;         // entries that the draft layer held before
    std::int64_t fed = 0;           // those that it has made of these states
    std::vector<std::byte> output;  // [E], of the row's last entry
  };
  // What a row of the layer's slots feeds in a step.
  struct Slot {
    const DraftRow* row = nullptr;  // nullptr: it does not draft
    Held* held = nullptr;
    bool is_first = false;  // behind its last pass
    std::size_t count = 1;  // tokens, which become entries from ``start`` on
    std::int64_t start = 0;
    std::int64_t last_token = 0, position = 0;  // the last of the tokens, and where it stands
    // Those before the last one are tokens of the pass, from its second on.
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
