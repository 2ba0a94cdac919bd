// Passes in which rows feed several tokens each.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "kv/slot_cache.h"
#include "stitching/engines.h"
#include "stitching/prompts.h"
#include "stitching/step_buffers.h"

namespace skipdec::runtime {

// The tokens that a row feeds in one pass, one or several, each with the layers that it runs.
// ``tokens[i]`` takes position ``position + i`` and runs ``plans[i]``, which names no layer that
// ``plans[i - 1]`` bypasses. Plans outlive the row.
struct StepRow {
  SlotCache::Row row = 0;
  TokenSpan tokens;
  std::int64_t position = 0;
  std::vector<const LayerPlan*> plans;
};

// Runs rows of several tokens each, on a past, through the layers that each token's plan names.
//
// The hidden states of a pass are packed: token after token, row after row, without padding, and
// embedding and head run on exactly these. A layer runs all of its slots in one call,
// [rows, longest, E], for which its tokens are gathered and padded: a shorter row repeats its last
// token, whose results are dropped. Padding writes to the cache behind the row's own positions; the
// next fed token overwrites that before it is read. One row, or rows of equally many tokens, need
// no gathering.
//
// Worked: rows a and b feed a0 a1 a2 and b0, and a2 bypasses layer 4. Then
//     layer 3 runs [[a0 a1 a2] [b0 b0 b0]], layer 4 [[a0 a1] [b0 b0]].
//
// ONNX Runtime's own attention takes several tokens with a past only for a single row, so its
// layers are called row by row.
class Passes {
 public:
  // All arguments outlive this.
  Passes(const Engines& engines, const Manifest& manifest, SlotCache& cache);

  // Throws Error (kInternal) for tokens that cannot be fed; changes nothing.
  void check(const std::vector<StepRow>& rows) const;
  // Runs a pass of rows that `check` accepted and that have left the layers that they bypass.
  // Returns the logits [V] of every token, row after row, valid until the next call.
  const std::vector<const float*>& run(const std::vector<StepRow>& rows);
  // The number of layers that the last pass called.
  std::int64_t layers_called() const { return static_cast<std::int64_t>(route_->stops.size()); }
  // Drops all bindings to slots, whose buffers are about to be freed.
  void unbind();

 private:
  using Indices = std::vector<std::int64_t>;
  // The tokens that neighbouring layers run.
  struct Group {
    Indices rows;    // places in the pass, in the order of the layers' slots
    Indices counts;  // tokens of each
    std::int64_t longest = 0;
    bool is_gathered = false;  // false: the packed tokens already have the layer's shape
    bool equals(const Group& other) const {
      return is_gathered == other.is_gathered && rows == other.rows && counts == other.counts;
    }
  };
  struct Stop {
    std::size_t group = 0;  // an index of Route::groups
    std::vector<Binding*> bindings;
  };
  // The calls of a pass; passes repeat them while ``version`` of the cache lasts.
  struct Route {
    std::uint64_t version = 0;
    std::vector<std::pair<SlotCache::Row, std::vector<const LayerPlan*>>> made_of;
    std::vector<std::size_t> order;  // places in ``made_of``, in the order of the pass
    Indices firsts;                  // place of each of these rows' first token in the pass
    std::vector<Group> groups;
    std::vector<Stop> stops;
    Binding* embed = nullptr;
    Binding* head = nullptr;
    std::vector<const float*> logits;  // in the order in which rows were given
  };
  // layer, slot, rows, tokens, first token, is_gathered
  using Shape =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;
  struct Bound {
    std::uint64_t generation = 0;
    std::unique_ptr<Binding> binding;
  };

  bool is_current(const std::vector<StepRow>& rows) const;
  void reserve_buffers(const std::vector<StepRow>& rows);
  void find_route(const std::vector<StepRow>& rows);
  Group group_of(std::int64_t layer, const Route& route, const std::vector<StepRow>& rows) const;
  std::vector<Binding*> layer_bindings(std::int64_t layer, const Group& group,
                                       const Indices& firsts);
  Binding* layer_binding(const Shape& shape);
  Binding* end_binding(Session& session, std::int64_t tokens);
  void gather(const Group& group, const std::vector<StepRow>& rows);
  void scatter(const Group& group);

  const Engines& engines_;
  const Manifest& manifest_;
  SlotCache& cache_;
  std::optional<StepBuffers> all_, part_;
  std::map<Shape, Bound> bound_;
  std::map<std::pair<const Session*, std::int64_t>, std::unique_ptr<Binding>> ends_;
  std::optional<Route> route_;
};

}  // namespace skipdec::runtime
