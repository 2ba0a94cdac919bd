// Attention(query f32 [B, S, N·D], key f32 [B, S, M·D]?, value f32 [B, S, M·D]?, past_key,
// past_value, write_indices int64 [B], inv_freq f32 [R/2]?, query_norm f32 [D]?, key_norm f32 [D]?)
// → (y f32 [B, S, N·D], present_key, present_value).
//
// Without key and value, query is packed: [B, S, (N + 2M)·D]. past and present, [B, M, T, W], share
// memory; W is D for float32, float16 and bfloat16, and D + 4 for int8, whose rows end with their
// float32 scale. Token s of sequence b takes position write_indices[b] + s, if that is below T, and
// attends to all positions up to its own.
//
// With query_norm and key_norm, each head of a new query or key becomes x · norm / √(mean(x²) +
// norm_epsilon). With inv_freq, its pairs (x[i], x[i + R/2]) are then rotated by the angle position
// · inv_freq[i], whose cosine and sine are multiplied by rotary_scale (operators RMSNormalization
// and RotaryEmbedding); elements from R on stay. Keys are cached normalised and rotated.
// Attributes: num_heads (N), kv_num_heads (M), scale (0: 1/√D), rotary_scale (1), norm_epsilon.
#pragma once

#include <array>

#include "attention/kernels.h"
#include "operators/context.h"
#include "operators/custom_operator.h"

namespace skipdec {

// Implements the operator for any type of cache.
class AttentionOperator {
 public:
  static constexpr const char* kName = "Attention";
  static constexpr int kInplaceInput = -1;

  explicit AttentionOperator(const NodeInfo& node);
  void compute(const CallContext& context) const;

 private:
  attention::Call checked_call(const CallContext& context) const;
  void add_head_changes(const CallContext& context, attention::Call& call) const;
  static void run(const CallContext& context, const attention::Call& call,
                  const attention::Kernels& kernels);

  std::int64_t heads_;
  std::int64_t kv_heads_;
  float scale_;
  Rotation rotation_;
  Tensor query_norm_, key_norm_;
  float norm_epsilon_;
  InstructionSet instruction_set_;
};

// Each type is registered separately, because ONNX Runtime infers output types only for operators
// with a single input of any type.
template <abi::ElementType kCache>
class AttentionOn : public AttentionOperator {
 public:
  static constexpr std::array<Operand, 9> kInputs{{
      {abi::ElementType::kFloat},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {kCache},
      {kCache},
      {abi::ElementType::kInt64},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
  }};
  static constexpr std::array<Operand, 3> kOutputs{
      {{abi::ElementType::kFloat}, {kCache}, {kCache}}};

  using AttentionOperator::AttentionOperator;
};

}  // namespace skipdec
