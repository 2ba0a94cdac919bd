#include "stitching/prompts.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "constants.h"

namespace skipdec::runtime {

namespace {

using constants::kScoreRows;  // logits of OPT's vocabulary take 13 MB

// int64 [rows, length]: start, start + 1, start + 2 ... in each row.
std::vector<std::int64_t> positions(std::int64_t rows, std::int64_t length, std::int64_t start) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(rows * length));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto first = ids.begin() + row * length;
    std::iota(first, first + length, start);
  }
  return ids;
}

}  // namespace

Prompts::Prompts(const Engines& engines, const Manifest& manifest)
    : engines_(engines),
      layout_(KVLayout::of(manifest)),
      hidden_size_(manifest.model.hidden_size),
      vocab_size_(manifest.model.vocab_size),
      token_bytes_(hidden_size_ * static_cast<std::int64_t>(item_bytes(manifest.hidden_dtype))) {}

Logits Prompts::prefill(const std::vector<const TokenSpan*>& prompts,
                        const ActiveLengths& active_lengths, const LayerCaches& caches,
                        const AfterLayer& after) {
  const Hidden hidden = run(prompts, 0, active_lengths, caches, after);
  return gather_logits(hidden, hidden.last);
}

Logits Prompts::chunk(const TokenSpan& tokens, std::int64_t start,
                      const ActiveLengths& active_lengths, const LayerCaches& caches,
                      bool is_last) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const auto active = [&](std::int64_t layer) {
    const std::int64_t left = active_lengths(layer).front() - start;
    return std::vector<std::int64_t>{std::clamp<std::int64_t>(left, 0, count)};
  };
  const Hidden hidden = run({&tokens}, start, active, caches);
  if (!is_last) return {0, vocab_size_};
  return gather_logits(hidden, hidden.last);
}

void Prompts::score(const TokenSpan& tokens, const std::vector<std::int64_t>& active_lengths,
                    std::int64_t first, std::int64_t count, const CacheView& scratch,
                    const std::function<void(const Logits&)>& take) {
  const auto active = [&](std::int64_t layer) {
    return std::vector<std::int64_t>{active_lengths[static_cast<std::size_t>(layer)]};
  };
  const auto caches = [&](std::int64_t) { return scratch; };
  const Hidden hidden = run({&tokens}, 0, active, caches);
  for (std::int64_t done = 0; done < count; done += kScoreRows) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(std::min(kScoreRows, count - done)));
    std::iota(rows.begin(), rows.end(), first + done);
    take(gather_logits(hidden, std::move(rows)));
  }
}

// Runs prompts from position ``start`` on, padded on the right to the longest, each layer on the
// prefixes that are active in it. Results beyond a row's own length are dropped: hidden states keep
// the values of the layer below, and keys and values are never read. The last tokens' states that
// drafts read become `end_states`.
Prompts::Hidden Prompts::run(const std::vector<const TokenSpan*>& prompts, std::int64_t start,
                             const ActiveLengths& active_lengths, const LayerCaches& caches,
                             const AfterLayer& after) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(prompts.size());
  for (const TokenSpan* prompt : prompts) {
    lengths.push_back(static_cast<std::int64_t>(prompt->size()));
  }
  Hidden hidden = embed(prompts, start);
  for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
    const std::vector<std::int64_t> active = active_lengths(layer);
    const std::int64_t longest = *std::max_element(active.begin(), active.end());
    if (active == lengths) {
      run_layer(layer, hidden.memory.data(), hidden.length, caches(layer), lengths, start);
    } else if (longest > 0) {
      run_prefixes(layer, hidden, caches(layer), active, start);
    }
    keep_states(layer + 1, hidden);
    after(layer);
  }
  return hidden;
}

// Keeps the states of last tokens after ``layers`` layers, if drafts read them there.
void Prompts::keep_states(std::int64_t layers, const Hidden& hidden) {
  const std::vector<std::int64_t>& last = hidden.last;
  const std::size_t count = engines_.reads.size(), bytes = static_cast<std::size_t>(token_bytes_);
  end_states_.resize(last.size() * count * bytes);
  for (std::size_t index = 0; index < count; ++index) {
    if (engines_.reads[index] != layers) continue;
    for (std::size_t row = 0; row < last.size(); ++row) {
      std::memcpy(end_states_.data() + (row * count + index) * bytes,
                  hidden.memory.data() + last[row] * token_bytes_, bytes);
    }
  }
}

Prompts::Hidden Prompts::embed(const std::vector<const TokenSpan*>& rows, std::int64_t start) {
  std::size_t longest = 0;
  for (const TokenSpan* row : rows) longest = std::max(longest, row->size());
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto length = static_cast<std::int64_t>(longest);
  Hidden hidden{count, length, Buffer(count * length * token_bytes_), {}};
  std::vector<std::int64_t> input_ids(rows.size() * longest);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::copy(rows[row]->begin(), rows[row]->end(),
              input_ids.begin() + static_cast<std::ptrdiff_t>(row * longest));
    hidden.last.push_back(static_cast<std::int64_t>(row * longest + rows[row]->size()) - 1);
  }
  std::vector<std::int64_t> position_ids = positions(count, length, start);
  run_once(*engines_.embed,
           {
               {Role::kInputIds, input_ids.data(), {count, length}},
               {Role::kPositionIds, position_ids.data(), {count, length}},
               {Role::kHiddenStatesOut, hidden.memory.data(), {count, length, hidden_size_}},
           });
  return hidden;
}

// Runs a layer on ``hidden_states`` [rows, padded, E]; only row r's first ``lengths[r]`` tokens
// count.
void Prompts::run_layer(std::int64_t layer, std::byte* hidden_states, std::int64_t padded,
                        const CacheView& cache, const std::vector<std::int64_t>& lengths,
                        std::int64_t start) {
  const auto rows = static_cast<std::int64_t>(lengths.size());
  const std::vector<std::int64_t> shape{rows, padded, hidden_size_};
  std::vector<std::int64_t> position_ids = positions(rows, padded, start);
  std::vector<std::int64_t> write_indices(lengths.size(), start);
  std::vector<std::int32_t> seqlens_k;
  seqlens_k.reserve(lengths.size());
  for (const std::int64_t length : lengths) {
    seqlens_k.push_back(static_cast<std::int32_t>(start + length - 1));
  }
  auto total = static_cast<std::int32_t>(start + padded);
  std::vector<BoundTensor> tensors{
      {Role::kHiddenStates, hidden_states, shape},
      {Role::kHiddenStatesOut, hidden_states, shape},
      {Role::kPositionIds, position_ids.data(), {rows, padded}},
      {Role::kSeqlensK, seqlens_k.data(), {rows}},
      {Role::kTotalSequenceLength, &total, {}},
      {Role::kWriteIndices, write_indices.data(), {rows}},
  };
  add_cache(tensors, layout_, cache);
  run_once(engines_.layer(layer), tensors);
}

// Runs the first ``active[r]`` tokens of each row; the others bypass the layer.
void Prompts::run_prefixes(std::int64_t layer, Hidden& hidden, const CacheView& cache,
                           const std::vector<std::int64_t>& active, std::int64_t start) {
  const std::int64_t longest = *std::max_element(active.begin(), active.end());
  if (hidden.rows == 1) {  // its first tokens are contiguous
    run_layer(layer, hidden.memory.data(), longest, cache, active, start);
    return;
  }
  const Buffer prefixes(hidden.rows * longest * token_bytes_);
  const auto row_bytes = static_cast<std::size_t>(longest * token_bytes_);
  const auto held_at = [&](std::size_t row) {
    return hidden.memory.data() + static_cast<std::int64_t>(row) * hidden.length * token_bytes_;
  };
  for (std::size_t row = 0; row < active.size(); ++row) {
    std::memcpy(prefixes.data() + row * row_bytes, held_at(row), row_bytes);
  }
  run_layer(layer, prefixes.data(), longest, cache, active, start);
  for (std::size_t row = 0; row < active.size(); ++row) {
    std::memcpy(held_at(row), prefixes.data() + row * row_bytes,
                static_cast<std::size_t>(active[row] * token_bytes_));
  }
}

Logits Prompts::gather_logits(const Hidden& hidden, std::vector<std::int64_t> row_positions) {
  const auto rows = static_cast<std::int64_t>(row_positions.size());
  Logits logits(rows, vocab_size_);
  run_once(
      *engines_.head,
      {
          {Role::kHiddenStates, hidden.memory.data(), {hidden.rows, hidden.length, hidden_size_}},
          {Role::kRowPositions, row_positions.data(), {rows}},
          {Role::kLogits, logits.row(0), {rows, vocab_size_}},
      });
  return logits;
}

}  // namespace skipdec::runtime
