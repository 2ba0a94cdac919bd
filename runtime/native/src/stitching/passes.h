// Passes: the calls of a running batch's steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/slot_cache.h"
#include "stitching/engines.h"
#include "stitching/prompts.h"
#include "stitching/step_buffers.h"

namespace skipdec::runtime {

// The tokens, one or several, that a row feeds in one pass, each with the layers that it runs.
// ``tokens[i]`` takes position ``position + i`` and runs ``plans[i]``, which names no layer that
// ``plans[i - 1]`` bypasses. Plans must outlive the row.
struct StepRow {
  SlotCache::Row row = 0;
  TokenSpan tokens;
  std::int64_t position = 0;
  std::vector<const LayerPlan*> plans;
};

// Runs steps, passes and drafts over the layers in which rows reside.
//
// The hidden states of a pass are packed, token after token and row after row, without padding.
// Embedding and head run on exactly these. Rows have the order of the top layer's slots if all of
// them run that layer. A layer runs all of its slots in one call, [rows, longest, E]. If its tokens
// are not packed in this shape and order, they are gathered in a second set of buffers and padded:
// a shorter row repeats its last token, whose results are dropped. Padding writes to the cache
// after the row's own positions, where the next token overwrites it before it is read.
//
// Worked: rows a and b feed a0 a1 a2 and b0, and a2 bypasses layer 4. Then
//     layer 3 runs [[a0 a1 a2] [b0 b0 b0]], layer 4 [[a0 a1] [b0 b0]].
//
// ONNX Runtime's own attention takes several tokens with a past only for a single row, so its
// layers are called row by row if a row feeds several tokens.
class Passes {
 public:
  // All arguments must outlive this object. Passes of up to ``max_rows`` rows of one token each
  // need no further memory.
  Passes(const Engines& engines, const Manifest& manifest, SlotCache& cache, std::int64_t max_rows);

  // Throws Error (kInternal) for tokens that cannot be fed; changes nothing.
  void check(const std::vector<StepRow>& rows) const;
  // Runs a pass of rows that `check` accepted and that have left the layers that they bypass.
  // Returns the logits [V] of every token, row after row, valid until the next call.
  const std::vector<const float*>& run(const std::vector<StepRow>& rows);
  // Runs one token of each row through the layers of ``plan``, and a head on the rows at the places
  // ``drafting``; see `SlotStitcher::draft`.
  const std::vector<const float*>& draft(const std::vector<StepRow>& rows,
                                         const std::vector<std::size_t>& drafting,
                                         const LayerPlan& plan);
  std::int64_t num_draft_logits() const;
  // Returns the states [tokens, 3, E] that the last pass kept for trained drafts, of the row at
  // ``index`` of the given rows; valid until the next pass.
  const std::byte* states(std::size_t index) const {
    return states_.data() + route_->firsts[index] * engines_.reads.size() * all_.row_bytes();
  }
  // The number of layers that the last pass called, not counting drafts.
  std::int64_t layers_called() const { return layers_called_; }
  // The number of bindings made so far; a call that makes some takes longer than its repetition.
  std::int64_t num_bound() const { return num_bound_; }
  // Drops all bindings to slots, because their buffers are about to be freed.
  void unbind();

 private:
  using Indices = std::vector<std::size_t>;
  // The tokens that a run of adjacent layers runs.
  struct Group {
    Indices rows;    // indices of the pass's rows, in the order of the layers' slots
    Indices counts;  // tokens of each
    std::size_t longest = 0;
    bool is_gathered = false;  // false: the packed tokens already have the layer's shape
    bool is_split = false;     // called row by row
    bool equals(const Group& other) const {
      return is_gathered == other.is_gathered && is_split == other.is_split && rows == other.rows &&
             counts == other.counts;
    }
  };
  struct Stop {
    std::int64_t layer = 0;
    std::size_t group = 0;  // an index of Route::groups
    std::vector<Binding*> bindings;
  };
  // The calls of a pass, which passes repeat until the cache's ``version`` changes.
  struct Route {
    std::uint64_t version = 0;
    const LayerPlan* plan = nullptr;  // the layers of a draft; nullptr for a pass
    std::vector<std::pair<SlotCache::Row, std::vector<const LayerPlan*>>> made_of;
    std::unordered_map<SlotCache::Row, std::size_t> index_of;  // of the given rows
    Indices order;   // indices of the rows, in the order of the pass
    Indices firsts;  // place of each row's first token in the pass, by index
    std::vector<Group> groups;
    std::vector<Stop> stops;
    Binding* embed = nullptr;
    Binding* head = nullptr;           // of a pass
    std::vector<const float*> logits;  // of a pass, in the order of the given rows
  };
  // layer, slot, rows, tokens, first token, is_gathered
  using Shape = std::tuple<std::int64_t, std::size_t, std::size_t, std::size_t, std::size_t, bool>;
  struct Bound {
    std::uint64_t generation = 0;
    std::unique_ptr<Binding> binding;
  };

  const Route& route_of(std::optional<Route>& known, const std::vector<StepRow>& rows,
                        const LayerPlan* plan);
  Route found_route(const std::vector<StepRow>& rows, const LayerPlan* plan);
  void place_rows(Route& route, const std::vector<StepRow>& rows);
  void find_stops(Route& route, const std::vector<StepRow>& rows);
  void reserve_buffers(const std::vector<StepRow>& rows);
  Group group_of(std::int64_t layer, const Route& route, const std::vector<StepRow>& rows) const;
  std::vector<Binding*> layer_bindings(std::int64_t layer, const Group& group,
                                       const Indices& firsts);
  Binding* layer_binding(const Shape& shape);
  Binding* end_binding(Session& session, std::size_t tokens);
  Binding* draft_head_binding(std::size_t rows, std::size_t drafting);
  void run_layers(const Route& route, const std::vector<StepRow>& rows,
                  const std::vector<std::int64_t>& reads);
  void keep_states(std::size_t index, std::size_t tokens, std::size_t count);
  void gather(const Route& route, const Group& group, const std::vector<StepRow>& rows);
  void scatter(const Route& route, const Group& group);

  const Engines& engines_;
  const Manifest& manifest_;
  SlotCache& cache_;
  StepBuffers all_, part_;
  std::map<Shape, Bound> bound_;
  // Bindings of embedding and head, by session, tokens, and rows that draft.
  std::map<std::tuple<const Session*, std::size_t, std::size_t>, std::unique_ptr<Binding>> ends_;
  std::optional<Route> route_, draft_route_;
  std::vector<const float*> draft_logits_;  // of the last draft
  std::vector<std::byte> states_;           // kept by the last pass, [tokens, 3, E]
  std::int64_t layers_called_ = 0, num_bound_ = 0;
};

}  // namespace skipdec::runtime
