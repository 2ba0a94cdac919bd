// Steps over rows at depths of their own: a layer runs on exactly the rows whose plan holds it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/prefixes.h"
#include "kv/slots.h"
#include "stitching/passes.h"
#include "stitching/prompts.h"
#include "stitching/step_buffers.h"

namespace skipdec::runtime {

// A row that begins: its number, its prompt, and what is reserved for it. ``copies``: numbers of
// rows that go on from the same prompt (further completions of it). ``owner``: of the kept
// beginnings that the prompt may use, see `PrefixCache`.
struct PromptRow {
  SlotCache::Row row = 0;
  TokenSpan tokens;
  SchedulePointer schedule;
  Reservation reservation;
  std::vector<SlotCache::Row> copies;
  std::string owner;

  // How many of the prompt's tokens, from the first on, run ``layer``.
  std::int64_t active_length(std::int64_t layer) const {
    return schedule->prompt_prefix(layer, static_cast<std::int64_t>(tokens.size()));
  }
  bool runs_whole() const;  // every layer runs on the whole prompt
};

// The engines of a bundle over rows that come and go; see `SlotCache`.
//
// Depth never grows along a row, so what a row's plan bypasses it never runs again: its slots in
// these layers go to others at once, and its hidden state passes them untouched.
//
// A step's rows stand in the order of the top layer's slots, where all of them run it. A layer
// whose slots have another order, or fewer rows, works on a second set of buffers: its rows are
// gathered there with their positions, and scattered back behind the last layer of that order.
class SlotStitcher {
 public:
  SlotStitcher(const Engines& engines, const Manifest& manifest, const SlotLimits& limits,
               bool keeps_prefixes);

  // Whether there is KV memory for these rows, beside those that run, until their ends.
  bool fits(const std::vector<const PromptRow*>& rows) const;
  // The same for one row whose prompt runs in chunks.
  bool fits_in_chunks(const PromptRow& row) const;
  // Bytes of KV memory that the row and its copies need if nothing else runs. Any thread.
  std::int64_t bytes_alone(const PromptRow& row, bool in_chunks) const;
  // Tokens at the row's beginning that need not run, since a prompt before began so. If there are
  // some, its prompt runs in chunks, and the first of them begins there.
  std::int64_t kept_tokens(const PromptRow& row) const;

  // Reserves for rows that `fits` said yes to and runs their prompts, together. Returns logits
  // [rows, V] of each prompt's last token.
  Logits prefill(const std::vector<const PromptRow*>& rows);
  // Reserves for a row that `fits_in_chunks` said yes to, whose prompt `chunk` will run; it
  // outlives that. Returns how many of its first tokens need not run.
  std::int64_t begin_chunks(const PromptRow& row);
  // Runs the begun prompt up to token ``stop``; logits [1, V] if that is its end, else [0, V].
  Logits chunk(std::int64_t stop);
  // Runs one pass of all rows that run, each over the tokens that it feeds: a layer runs on exactly
  // the tokens whose plan names it, and a token attends to all before it. Returns the logits [V] of
  // every token, row after row in the given order, valid until the next call. With several tokens
  // in a row, results have the bits of one token at a time where products are int8 or int4 on
  // skipdec's kernels. Repeated with the same rows and plans, passes of one token per row allocate
  // nothing. Throws Error (kInternal), before anything has changed, for tokens that cannot be fed.
  const std::vector<const float*>& step(const std::vector<StepRow>& rows);
  // The number of layers that the last pass called.
  std::int64_t layers_called() const { return layers_called_; }
  // Rolls a row back to its first ``length`` positions; later ones are fed again. It goes back to
  // the position where the row last left a layer at most, since that layer's keys and values are
  // gone: ``length`` may always be the first position of the last pass. Throws Error (kInternal)
  // for any other length.
  void truncate(SlotCache::Row row, std::int64_t length);
  // Teacher-forces one text: see Prompts::score. Takes KV memory meanwhile.
  void score(const TokenSpan& tokens, const std::vector<std::int64_t>& active_lengths,
             std::int64_t first, std::int64_t count,
             const std::function<void(const Logits&)>& take);
  // Of KV memory, and whether it can be had now, kept beginnings given up for it.
  std::int64_t score_bytes(std::int64_t tokens) const;
  bool fits_score(std::int64_t tokens) const;

  // Frees what a row holds; it has ended, or its prompt is given up.
  void release(SlotCache::Row row);
  // Frees all rows: what they hold may be wrong.
  void reset();

  const SlotLimits& limits() const { return cache_.limits(); }
  std::int64_t reserved_bytes() const { return pool_.in_use_bytes() - prefix_bytes(); }
  std::int64_t prefix_bytes() const { return prefixes_ ? prefixes_->nbytes() : 0; }

 private:
  using Rows = std::vector<SlotCache::Row>;
  // A layer's call: on all rows as they stand, or on those of ``gather``, an index of
  // Route::gathers.
  struct Stop {
    static constexpr std::size_t kAll = SIZE_MAX;
    std::size_t gather = kAll;
    Binding* binding = nullptr;
  };
  // How a step runs, as long as ``version`` of the cache lasts: steps repeat it.
  struct Route {
    std::uint64_t version = 0;
    Rows numbers;                                   // rows, as they are given
    std::vector<std::size_t> order;                 // places in ``numbers``, as buffers hold them
    std::vector<std::vector<std::size_t>> gathers;  // places in the buffers
    std::vector<Stop> stops;
    Binding* embed = nullptr;
    Binding* head = nullptr;
    std::vector<const float*> logits;  // by place in ``numbers``
  };
  // A prompt that runs in chunks, its keys and values of all layers, and how far it is.
  struct Chunked {
    const PromptRow* row = nullptr;
    std::vector<std::unique_ptr<CachePair>> caches;  // by layer
    std::int64_t done = 0;
  };

  std::int64_t scratch_capacity(const std::vector<const PromptRow*>& rows) const;
  std::int64_t scratch_bytes(const std::vector<const PromptRow*>& rows) const;
  std::int64_t chunk_bytes(const PromptRow& row) const;
  void reserve(const std::vector<const PromptRow*>& rows, std::int64_t prompt_bytes);
  void begin(const std::vector<const PromptRow*>& rows);
  void copy_kept(const std::vector<const PromptRow*>& rows, std::int64_t layer,
                 const CacheView& written);
  void leave_bypassed(const StepRow& row);
  bool is_current(const std::vector<StepRow>& rows) const;
  void find_route(const std::vector<StepRow>& rows);
  void run_layers(const std::vector<StepRow>& rows);
  void gather(const std::vector<std::size_t>& places, const std::vector<StepRow>& rows);
  void scatter(const std::vector<std::size_t>& places);
  Binding* layer_binding(std::int64_t layer, std::int64_t rows, bool is_part);
  Binding* end_binding(Session& session, std::int64_t rows);

  const Engines& engines_;
  BufferPool pool_;
  SlotCache cache_;
  Prompts prompts_;
  std::optional<PrefixCache> prefixes_;
  StepBuffers all_, part_;
  struct Depth {
    const LayerPlan* plan = nullptr;  // of the first token of the row's last pass
    std::int64_t since = 0;           // the position at which the row last left layers
  };
  std::unordered_map<SlotCache::Row, Depth> depths_;
  std::optional<Chunked> chunked_;
  struct Bound {
    std::uint64_t generation = 0;
    std::unique_ptr<Binding> binding;
  };
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, Bound> bound_;  // layer, rows, is_part
  std::map<std::pair<const Session*, std::int64_t>, std::unique_ptr<Binding>> ends_;
  std::optional<Route> route_;
  Passes passes_;
  std::int64_t layers_called_ = 0;
};

}  // namespace skipdec::runtime
