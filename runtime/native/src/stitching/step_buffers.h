// The memory of one decode step for up to a number of rows, allocated once.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/pool.h"
#include "sessions/session.h"

namespace skipdec::runtime {

// What engines are bound to: hidden states are every layer's input and output; logits are the
// result, overwritten by the next step. Addresses don't change.
class StepBuffers {
 public:
  StepBuffers(const Manifest& manifest, std::int64_t max_rows);

  std::vector<std::int64_t>& input_ids() { return input_ids_; }  // [max_rows]
  // At which position of its row each row's input token stands.
  void set_position(std::size_t row, std::int64_t position);
  // After all positions of a step of ``rows`` rows.
  void set_total(std::size_t rows);
  std::byte* hidden_state(std::int64_t row) const {
    return hidden_states_.data() + row * row_bytes_;
  }
  std::size_t row_bytes() const { return static_cast<std::size_t>(row_bytes_); }
  const float* logits(std::int64_t row) const;  // [vocab_size]

  // Of the first ``rows`` rows, by role.
  std::vector<BoundTensor> tensors(std::int64_t rows);

 private:
  std::int64_t hidden_size_, vocab_size_, row_bytes_;
  std::vector<std::int64_t> input_ids_, position_ids_, write_indices_, row_positions_;
  std::vector<std::int32_t> seqlens_k_;  // total length - 1 of each row
  std::int32_t total_sequence_length_ = 0;
  Buffer hidden_states_, logits_;
};

}  // namespace skipdec::runtime
