// The memory of one pass over up to ``max_rows`` tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/pool.h"
#include "sessions/session.h"

namespace skipdec::runtime {

// The tensors to which engines are bound, at fixed addresses. Hidden states are every layer's input
// and output; logits are the result, which the next step overwrites. A row of several tokens takes
// as many consecutive places.
class StepBuffers {
 public:
  StepBuffers(const Manifest& manifest, std::int64_t max_rows);

  std::vector<std::int64_t>& input_ids() { return input_ids_; }        // [max_rows]
  std::vector<std::int64_t>& position_ids() { return position_ids_; }  // [max_rows]
  std::int64_t size() const { return static_cast<std::int64_t>(input_ids_.size()); }
  // Sets where a row's ``count`` tokens start; their position ids are the caller's.
  void set_row(std::size_t row, std::int64_t start, std::int64_t count);
  // Call it after `set_row` for each of ``rows`` rows that one call runs.
  void set_total(std::size_t rows);
  std::byte* hidden_state(std::int64_t row) const {
    return hidden_states_.data() + row * row_bytes_;
  }
  std::size_t row_bytes() const { return static_cast<std::size_t>(row_bytes_); }
  const float* logits(std::int64_t row) const;  // [vocab_size]
  // The same for a head that scores ``tokens`` tokens, whose logits take the same memory.
  const float* logits(std::int64_t row, std::int64_t tokens) const;  // [tokens]

  // Returns the tensors of ``rows`` rows of ``tokens`` tokens each, by role.
  std::vector<BoundTensor> tensors(std::int64_t rows, std::int64_t tokens = 1,
                                   std::int64_t first_row = 0, std::int64_t first_token = 0);
  // Returns the tensors of a head that scores ``tokens`` tokens, for ``chosen`` of ``rows`` rows of
  // one token each; the head reads their places from `chosen_positions` when it runs.
  std::vector<BoundTensor> head_tensors(std::int64_t rows, std::int64_t chosen,
                                        std::int64_t tokens);
  std::vector<std::int64_t>& chosen_positions() { return chosen_positions_; }  // [max_rows]

 private:
  std::int64_t hidden_size_, vocab_size_, row_bytes_;
  std::vector<std::int64_t> input_ids_, position_ids_, write_indices_, row_positions_,
      chosen_positions_;
  std::vector<std::int32_t> seqlens_k_;      // total length - 1 of each row
  std::vector<std::int32_t> total_lengths_;  // of a call, at the place of its first row
  Buffer hidden_states_, logits_;
};

}  // namespace skipdec::runtime
