// SlotStitcher: prompts and passes of a running batch over the engines of a bundle.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/prefixes.h"
#include "kv/slot_cache.h"
#include "stitching/passes.h"
#include "stitching/prompts.h"
#include "stitching/trained_drafts.h"

namespace skipdec::runtime {

// A new row: its number, its prompt, and the KV memory that it reserves. ``copies`` are the numbers
// of rows that continue the same prompt (its further completions). ``owner`` names the owner of the
// prefixes that the prompt may use, see `PrefixCache`.
struct PromptRow {
  SlotCache::Row row = 0;
  TokenSpan tokens;
  SchedulePointer schedule;
  Reservation reservation;
  std::vector<SlotCache::Row> copies;
  std::string owner;

  // The number of the prompt's tokens, from the first on, that run ``layer``.
  std::int64_t active_length(std::int64_t layer) const {
    return schedule->prompt_prefix(layer, static_cast<std::int64_t>(tokens.size()));
  }
  bool runs_whole() const;  // true if every layer runs the whole prompt
};

// Runs the engines of a bundle over the running rows; see `SlotCache`.
//
// Depth never grows along a row, so a row never again runs a layer that its plan bypasses: its
// slots in these layers are freed at once, and its hidden state passes them unchanged.
//
// `Passes` makes the calls of its steps, passes and drafts.
class SlotStitcher {
 public:
  SlotStitcher(const Engines& engines, const Manifest& manifest, const Limits& limits,
               bool keeps_prefixes, bool has_draft_layer = false);

  // Returns true if the KV memory holds these rows until they end, in addition to the running rows.
  bool fits(const std::vector<const PromptRow*>& rows) const;
  // Returns the same for one row whose prompt runs in chunks.
  bool fits_in_chunks(const PromptRow& row) const;
  // Returns the bytes that the row and its copies need if nothing else runs. Any thread may call
  // it.
  std::int64_t bytes_alone(const PromptRow& row, bool in_chunks) const;
  // Returns true if enough of the prompt is cached that it should run in chunks after the prefix,
  // which counts as used.
  bool keeps_prefix(const PromptRow& row);

  // Reserves KV memory for rows that `fits` accepted and runs their prompts in one call. Returns
  // logits [rows, V] of each prompt's last token.
  Logits prefill(const std::vector<const PromptRow*>& rows);
  // Reserves KV memory for a row that `fits_in_chunks` accepted, whose prompt `chunk` runs; the row
  // must outlive the prompt. Returns how many of the prompt's first tokens need not run; room for
  // the row may have evicted some that were cached.
  std::int64_t begin_chunks(const PromptRow& row);
  // Runs up to ``most`` more tokens of the begun prompt. Returns logits [1, V] at its end, else
  // [0, V].
  Logits chunk(std::int64_t most);
  // Runs one pass of all running rows, each over the tokens that it feeds: a layer runs on exactly
  // the tokens whose plan names it, and a token attends to all before it. Returns the logits [V] of
  // every token, row after row in the given order, valid until the next call. If a row feeds
  // several tokens, the results equal those of one token at a time, bit for bit, with int8 or int4
  // products on skipdec's kernels. Passes of one token per row that repeat the same rows and plans
  // allocate nothing. Throws Error (kInternal), before anything has changed, for tokens that cannot
  // be fed.
  const std::vector<const float*>& step(const std::vector<StepRow>& rows);
  // Runs one token of each running row through the layers of ``plan``, and the head on the rows at
  // the places ``drafting`` of ``rows``, each of which must reside in all of these layers. Their
  // logits are guesses of the next tokens. Rows leave the layers that their own plans bypass, as in
  // the `step` that follows, but none that only ``plan`` bypasses. Lengths stay, because steps feed
  // the same positions again and overwrite what the draft wrote there before it is read. Returns
  // the logits [V] of each row that drafts, in the order of ``drafting``, valid until the next
  // call; with a narrow head, the logits [N] of the tokens that it scores. ``plan`` must outlive
  // this object.
  const std::vector<const float*>& draft(const std::vector<StepRow>& rows,
                                         const std::vector<std::size_t>& drafting,
                                         const LayerPlan& plan);
  // The number of logits per row of a draft: the tokens that its head scores.
  std::int64_t num_draft_logits() const { return passes_.num_draft_logits(); }
  // Runs one token of each row through the bundle's draft layer to guess the next one. After a
  // pass, each row begins with the token that it feeds next, at the position after the written
  // ones, and the draft layer reads the states of the pass or of the prompt. It continues with
  // guesses at the positions after that. Returns the logits of the tokens that the draft layer
  // scores, of the rows in the given order, valid until the next call.
  const std::vector<const float*>& draft_trained(const std::vector<DraftRow>& rows) {
    return trained_->step(rows);
  }
  // The tokens whose logits `draft_trained` returns, ascending.
  const std::vector<std::int64_t>& trained_token_ids() const { return trained_->token_ids(); }
  // The number of layers that the last pass called.
  std::int64_t layers_called() const { return passes_.layers_called(); }
  // The number of bindings that passes and drafts have made so far, see `Passes::num_bound`.
  std::int64_t num_bound() const {
    return passes_.num_bound() + (trained_ ? trained_->num_bound() : 0);
  }
  // True if rows have slots in the draft layer, too, by the last number of their reservations.
  bool has_draft_layer() const { return cache_.num_layers() > engines_.num_layers(); }
  // Rolls a row back to its first ``length`` positions; later ones are fed again. It can't go back
  // beyond the position at which the row last left a layer, because that layer's keys and values
  // are freed. ``length`` may always be the first position of the last pass. Throws Error
  // (kInternal) for an invalid length.
  void truncate(SlotCache::Row row, std::int64_t length);
  // Teacher-forces one text, see Prompts::score. Takes KV memory during the call.
  void score(const TokenSpan& tokens, const std::vector<std::int64_t>& active_lengths,
             std::int64_t first, std::int64_t count,
             const std::function<void(const Logits&)>& take);
  // Returns the KV memory that a scored text needs; `fits_score` returns true if that much is free
  // once prefixes are evicted.
  std::int64_t score_bytes(std::int64_t tokens) const;
  bool fits_score(std::int64_t tokens) const;

  // Frees the slots of a row that has ended, or whose prompt is cancelled.
  void release(SlotCache::Row row);
  // Frees all rows after a failure, because their keys and values may be wrong.
  void reset();

  const Limits& limits() const { return cache_.limits(); }
  std::int64_t reserved_bytes() const { return pool_.in_use_bytes() - prefix_bytes(); }
  std::int64_t prefix_bytes() const { return prefixes_ ? prefixes_->nbytes() : 0; }

 private:
  using Rows = std::vector<SlotCache::Row>;
  // A prompt that runs in chunks: its caches in all layers, and how many tokens have run.
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
  PrefixCache::Recording record(const PromptRow& row);
  void copy_kept(const std::vector<const PromptRow*>& rows, std::int64_t layer,
                 const CacheView& written);
  void leave_bypassed(const StepRow& row);

  const Engines& engines_;
  BufferPool pool_;
  SlotCache cache_;
  Prompts prompts_;
  std::optional<PrefixCache> prefixes_;
  struct Depth {
    const LayerPlan* plan = nullptr;  // of the first token of the row's last pass
    std::int64_t since = 0;           // the position at which the row last left layers
  };
  std::unordered_map<SlotCache::Row, Depth> depths_;
  std::optional<Chunked> chunked_;
  Passes passes_;
  std::optional<TrainedDrafts> trained_;  // set if rows have slots in the draft layer
};

}  // namespace skipdec::runtime
