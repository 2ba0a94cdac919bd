// The part of SlotStitcher that runs prompts: reservations, caches, prefixes.
#include <algorithm>
#include <utility>

#include "constants.h"
#include "stitching/slot_stitcher.h"

namespace skipdec::runtime {

namespace {

using constants::kPrefixShare;  // prefixes take at most a quarter of the KV memory

// A prompt with a kept prefix runs alone and so reads all weights just for itself, which costs as
// much as 12 tokens of OPT-1.3b in int8 on two cores.
using constants::kMinKeptTokens;

bool keeps(const PromptRow& row, std::int64_t layer) {
  return row.reservation[static_cast<std::size_t>(layer)] > 0;
}

// Returns the number of rows that run ``layer`` after their prompts.
std::size_t num_keeping(const std::vector<const PromptRow*>& rows, std::int64_t layer) {
  return static_cast<std::size_t>(std::count_if(
      rows.begin(), rows.end(), [&](const PromptRow* row) { return keeps(*row, layer); }));
}

ActiveLengths active_lengths_of(const std::vector<const PromptRow*>& rows) {
  return [rows](std::int64_t layer) {
    std::vector<std::int64_t> lengths;
    lengths.reserve(rows.size());
    for (const PromptRow* row : rows) lengths.push_back(row->active_length(layer));
    return lengths;
  };
}

// Returns one reservation for each row and each of its copies.
std::vector<const Reservation*> reservations(const std::vector<const PromptRow*>& rows) {
  std::vector<const Reservation*> all;
  for (const PromptRow* row : rows)
    all.insert(all.end(), row->copies.size() + 1, &row->reservation);
  return all;
}

}  // namespace

bool PromptRow::runs_whole() const {
  for (std::int64_t layer = 0; layer < schedule->num_layers(); ++layer) {
    if (active_length(layer) != static_cast<std::int64_t>(tokens.size())) return false;
  }
  return true;
}

bool SlotStitcher::fits(const std::vector<const PromptRow*>& rows) const {
  return cache_.bytes_with(reservations(rows), scratch_bytes(rows)) <= cache_.limits().kv_bytes;
}

bool SlotStitcher::fits_in_chunks(const PromptRow& row) const {
  return cache_.bytes_with(reservations({&row}), chunk_bytes(row)) <= cache_.limits().kv_bytes;
}

std::int64_t SlotStitcher::bytes_alone(const PromptRow& row, bool in_chunks) const {
  const auto rows = static_cast<std::int64_t>(row.copies.size()) + 1;
  return cache_.bytes_alone(row.reservation, rows) +
         (in_chunks ? chunk_bytes(row) : scratch_bytes({&row}));
}

bool SlotStitcher::keeps_prefix(const PromptRow& row) {
  if (!prefixes_ || !row.runs_whole()) return false;
  const std::size_t blocks = prefixes_->find(row.tokens, row.owner).size();
  if (static_cast<std::int64_t>(blocks) * kBlockTokens < kMinKeptTokens) return false;
  return bytes_alone(row, true) <= cache_.limits().kv_bytes;  // otherwise it never fits
}

// Returns the capacity of the pair that layers share if not all rows keep them; 0 without a pair.
std::int64_t SlotStitcher::scratch_capacity(const std::vector<const PromptRow*>& rows) const {
  std::int64_t longest = 0;
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    if (num_keeping(rows, layer) == rows.size()) continue;
    for (const PromptRow* row : rows) longest = std::max(longest, row->active_length(layer));
  }
  return longest;
}

std::int64_t SlotStitcher::scratch_bytes(const std::vector<const PromptRow*>& rows) const {
  const std::int64_t capacity = scratch_capacity(rows);
  const auto count = static_cast<std::int64_t>(rows.size());
  return capacity == 0 ? 0 : 2 * pooled_size(cache_.layout().nbytes(count, capacity));
}

// Returns the bytes of the caches that a prompt in chunks keeps, one pair per layer.
std::int64_t SlotStitcher::chunk_bytes(const PromptRow& row) const {
  std::int64_t total = 0;
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    total += 2 * pooled_size(cache_.layout().nbytes(1, row.active_length(layer)));
  }
  return total;
}

Logits SlotStitcher::prefill(const std::vector<const PromptRow*>& rows) {
  reserve(rows, scratch_bytes(rows));
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t capacity = scratch_capacity(rows);
  std::optional<CachePair> scratch;
  if (capacity > 0) scratch.emplace(pool_, cache_.layout(), count, capacity);
  std::vector<PrefixCache::Recording> recordings;
  std::vector<const TokenSpan*> prompts;
  Rows numbers;
  for (const PromptRow* row : rows) {
    recordings.push_back(record(*row));
    prompts.push_back(&row->tokens);
    numbers.push_back(row->row);
  }
  CacheView written;
  const auto caches = [&](std::int64_t layer) {
    const bool all_keep = num_keeping(rows, layer) == rows.size();
    written = all_keep ? cache_.enter(layer, numbers) : scratch->view(0, count);
    return written;
  };
  const auto after = [&](std::int64_t layer) {
    if (num_keeping(rows, layer) < rows.size()) copy_kept(rows, layer, written);
    for (std::int64_t index = 0; index < count; ++index) {
      recordings[static_cast<std::size_t>(index)].copy(layer, written, index);
    }
  };
  Logits logits = prompts_.prefill(prompts, active_lengths_of(rows), caches, after);
  for (PrefixCache::Recording& recording : recordings) recording.commit();
  begin(rows);
  return logits;
}

std::int64_t SlotStitcher::begin_chunks(const PromptRow& row) {
  reserve({&row}, chunk_bytes(row));
  Chunked chunked;
  chunked.row = &row;
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    chunked.caches.push_back(
        std::make_unique<CachePair>(pool_, cache_.layout(), 1, row.active_length(layer)));
  }
  if (prefixes_ && row.runs_whole()) {
    const auto blocks = prefixes_->find(row.tokens, row.owner);
    for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
      const CacheView target = chunked.caches[static_cast<std::size_t>(layer)]->view(0, 1);
      prefixes_->restore(blocks, layer, target);
    }
    chunked.done = static_cast<std::int64_t>(blocks.size()) * kBlockTokens;
  }
  chunked_ = std::move(chunked);
  return chunked_->done;
}

Logits SlotStitcher::chunk(std::int64_t most) {
  Chunked& chunked = *chunked_;
  const PromptRow& row = *chunked.row;
  const auto length = static_cast<std::int64_t>(row.tokens.size());
  const std::int64_t stop = std::min(chunked.done + most, length);
  const auto cache_of = [&](std::int64_t layer) {
    return chunked.caches[static_cast<std::size_t>(layer)]->view(0, 1);
  };
  const TokenSpan tokens(row.tokens.begin() + chunked.done, row.tokens.begin() + stop);
  const bool is_last = stop == length;
  Logits logits =
      prompts_.chunk(tokens, chunked.done, active_lengths_of({&row}), cache_of, is_last);
  chunked.done = stop;
  if (!is_last) return logits;
  PrefixCache::Recording recording = record(row);
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    copy_kept({&row}, layer, cache_of(layer));
    recording.copy(layer, cache_of(layer), 0);
  }
  recording.commit();
  chunked_.reset();
  begin({&row});
  return logits;
}

void SlotStitcher::score(const TokenSpan& tokens, const std::vector<std::int64_t>& active_lengths,
                         std::int64_t first, std::int64_t count,
                         const std::function<void(const Logits&)>& take) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (prefixes_) {
    const std::int64_t others = pool_.in_use_bytes() - prefixes_->nbytes();
    const std::int64_t free = cache_.limits().kv_bytes - others - score_bytes(length);
    prefixes_->set_limit(std::clamp<std::int64_t>(free, 0, prefixes_->nbytes()));
  }
  const CachePair scratch(pool_, cache_.layout(), 1, length);
  prompts_.score(tokens, active_lengths, first, count, scratch.view(0, 1), take);
}

std::int64_t SlotStitcher::score_bytes(std::int64_t tokens) const {
  return 2 * pooled_size(cache_.layout().nbytes(1, tokens));
}

bool SlotStitcher::fits_score(std::int64_t tokens) const {
  return reserved_bytes() + score_bytes(tokens) <= cache_.limits().kv_bytes;
}

void SlotStitcher::reserve(const std::vector<const PromptRow*>& rows, std::int64_t prompt_bytes) {
  const std::vector<const Reservation*> reserved = reservations(rows);
  if (prefixes_) {
    const std::int64_t limit = cache_.limits().kv_bytes;
    const std::int64_t planned = cache_.bytes_with(reserved, prompt_bytes);
    prefixes_->set_limit(std::min(limit / kPrefixShare, limit - planned));
  }
  Rows numbers;
  for (const PromptRow* row : rows) {
    numbers.push_back(row->row);
    numbers.insert(numbers.end(), row->copies.begin(), row->copies.end());
  }
  cache_.reserve(numbers, reserved);
}

void SlotStitcher::begin(const std::vector<const PromptRow*>& rows) {
  const std::int64_t draft_layer = engines_.num_layers();
  for (const PromptRow* row : rows) {  // nothing of them is written in the draft layer yet
    if (has_draft_layer() && keeps(*row, draft_layer)) cache_.enter(draft_layer, {row->row});
  }
  for (const PromptRow* row : rows) {
    cache_.set_length(row->row, static_cast<std::int64_t>(row->tokens.size()));
  }
  for (const PromptRow* row : rows) {
    if (!row->copies.empty()) cache_.fork(row->row, row->copies);
  }
  for (std::size_t index = 0; trained_ && index < rows.size(); ++index) {
    const PromptRow& row = *rows[index];
    const TokenSpan last(row.tokens.end() - 1, row.tokens.end());
    const auto position = static_cast<std::int64_t>(row.tokens.size()) - 1;
    trained_->hold(row.row, position, last, prompts_.end_states(index));
    for (const SlotCache::Row copy : row.copies) {
      trained_->hold(copy, position, last, prompts_.end_states(index));
    }
  }
}

// Begins to record the blocks of a prompt that may be kept; records nothing of other prompts.
PrefixCache::Recording SlotStitcher::record(const PromptRow& row) {
  return prefixes_ && row.runs_whole() ? prefixes_->record(row.tokens, row.owner)
                                       : PrefixCache::Recording();
}

// Enters the rows that keep ``layer``, and copies the contents of ``written`` [rows, N, T, W].
void SlotStitcher::copy_kept(const std::vector<const PromptRow*>& rows, std::int64_t layer,
                             const CacheView& written) {
  for (std::size_t index = 0; index < rows.size(); ++index) {
    if (!keeps(*rows[index], layer)) continue;
    const CacheView slot = cache_.enter(layer, {rows[index]->row});
    copy_positions(cache_.layout(), written, static_cast<std::int64_t>(index), slot, 0,
                   static_cast<std::int64_t>(rows[index]->tokens.size()));
  }
}

}  // namespace skipdec::runtime
