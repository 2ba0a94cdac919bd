#include "stitching/step_buffers.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace skipdec::runtime {

StepBuffers::StepBuffers(const Manifest& manifest, std::int64_t max_rows)
    : hidden_size_(manifest.model.hidden_size),
      vocab_size_(manifest.model.vocab_size),
      row_bytes_(hidden_size_ * static_cast<std::int64_t>(item_bytes(manifest.hidden_dtype))),
      input_ids_(static_cast<std::size_t>(max_rows)),
      position_ids_(input_ids_),
      write_indices_(input_ids_),
      row_positions_(input_ids_),
      chosen_positions_(input_ids_),
      seqlens_k_(static_cast<std::size_t>(max_rows)),
      total_lengths_(seqlens_k_),
      hidden_states_(max_rows * row_bytes_),
      logits_(max_rows * vocab_size_ * static_cast<std::int64_t>(sizeof(float))) {
  std::iota(row_positions_.begin(), row_positions_.end(), 0);
}

void StepBuffers::set_total(std::size_t rows) {
  const auto end = seqlens_k_.begin() + static_cast<std::ptrdiff_t>(rows);
  total_lengths_.front() = *std::max_element(seqlens_k_.begin(), end) + 1;
}

void StepBuffers::set_row(std::size_t row, std::int64_t start, std::int64_t count) {
  write_indices_[row] = start;
  seqlens_k_[row] = static_cast<std::int32_t>(start + count - 1);
  total_lengths_[row] = static_cast<std::int32_t>(start + count);
}

const float* StepBuffers::logits(std::int64_t row) const { return logits(row, vocab_size_); }

const float* StepBuffers::logits(std::int64_t row, std::int64_t tokens) const {
  const void* const first = logits_.data();
  return static_cast<const float*>(first) + row * tokens;
}

std::vector<BoundTensor> StepBuffers::head_tensors(std::int64_t rows, std::int64_t chosen,
                                                   std::int64_t tokens) {
  return {
      {Role::kHiddenStates, hidden_state(0), {rows, 1, hidden_size_}},
      {Role::kRowPositions, chosen_positions_.data(), {chosen}},
      {Role::kLogits, logits_.data(), {chosen, tokens}},
  };
}

std::vector<BoundTensor> StepBuffers::tensors(std::int64_t rows, std::int64_t tokens,
                                              std::int64_t first_row, std::int64_t first_token) {
  const std::vector<std::int64_t> ids{rows, tokens};
  const std::vector<std::int64_t> hidden{rows, tokens, hidden_size_};
  std::byte* const states = hidden_state(first_token);
  std::byte* const results =
      logits_.data() + first_token * vocab_size_ * static_cast<std::int64_t>(sizeof(float));
  return {
      {Role::kInputIds, input_ids_.data() + first_token, ids},
      {Role::kPositionIds, position_ids_.data() + first_token, ids},
      {Role::kHiddenStates, states, hidden},
      {Role::kHiddenStatesOut, states, hidden},
      {Role::kSeqlensK, seqlens_k_.data() + first_row, {rows}},
      {Role::kTotalSequenceLength, total_lengths_.data() + first_row, {}},
      {Role::kWriteIndices, write_indices_.data() + first_row, {rows}},
      {Role::kRowPositions, row_positions_.data() + first_token, {rows * tokens}},
      {Role::kLogits, results, {rows * tokens, vocab_size_}},
  };
}

}  // namespace skipdec::runtime
