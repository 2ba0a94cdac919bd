// skipdec::BlockLinear4 and BlockLinear8: linear layers with int4 or int8 weights in blocks, which
// quantise their input rows themselves.
#pragma once

#include <array>

#include "blocks/block_product.h"
#include "operators/context.h"
#include "operators/custom_operator.h"

namespace skipdec {

// Inputs: x f32 [..., K]; weight uint8 [Np/16, Kp/8, 16, 4], or int8 [Np/16, Kp/4, 16, 4] of 8
// bits, scale bfloat16 [Np/16, Kp/block_size, 16] and optionally bias f32 [N], all initialisers;
// optionally residual f32 [..., N]. Output: f32 [..., N], as blocks/block_product.h defines it.
// Attributes: block_size, N, activation, gated.
template <int kBits>
class BlockLinear {
 public:
  static_assert(kBits == 4 || kBits == 8);
  static constexpr const char* kName = kBits == 8 ? "BlockLinear8" : "BlockLinear4";
  static constexpr std::array<Operand, 5> kInputs{{
      {abi::ElementType::kFloat},
      {kBits == 8 ? abi::ElementType::kInt8 : abi::ElementType::kUint8},
      {abi::ElementType::kBfloat16},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
  }};
  static constexpr std::array<Operand, 1> kOutputs{{{abi::ElementType::kFloat}}};
  static constexpr int kInplaceInput = 4;

  // Throws OperatorError if attributes and initialisers are inconsistent or not those of packed
  // weights.
  explicit BlockLinear(const NodeInfo& node);

  // Throws OperatorError if x or residual have the wrong shape.
  void compute(const CallContext& call) const;

 private:
  void run(const CallContext& call, BlockRows& rows) const;

  InstructionSet instruction_set_;
  BlockWeights weights_;
};

using BlockLinear4 = BlockLinear<4>;
using BlockLinear8 = BlockLinear<8>;

}  // namespace skipdec
