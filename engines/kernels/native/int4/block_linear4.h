// skipdec::BlockLinear4: a linear layer with blocks of int4 weights that quantises its input rows
// itself.
#pragma once

#include <array>

#include "int4/block_product.h"
#include "operators/context.h"
#include "operators/custom_operator.h"

namespace skipdec {

// Inputs: x f32 [..., K]; weight uint8 [Np/16, Kp/8, 16, 4], scale bfloat16 [Np/16, Kp/block_size,
// 16] and optionally bias f32 [N], all initialisers; optionally residual f32 [..., N]. Output: f32
// [..., N], as int4/block_product.h defines it. Attributes: block_size, N, activation.
class BlockLinear4 {
 public:
  static constexpr const char* kName = "BlockLinear4";
  static constexpr std::array<Operand, 5> kInputs{{
      {abi::ElementType::kFloat},
      {abi::ElementType::kUint8},
      {abi::ElementType::kBfloat16},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
  }};
  static constexpr std::array<Operand, 1> kOutputs{{{abi::ElementType::kFloat}}};
  static constexpr int kInplaceInput = 4;

  // Throws OperatorError if attributes and initialisers are inconsistent or not those of packed
  // weights.
  explicit BlockLinear4(const NodeInfo& node);

  // Throws OperatorError if x or residual have the wrong shape.
  void compute(const CallContext& call) const;

 private:
  void run(const CallContext& call, BlockRows& rows) const;

  InstructionSet instruction_set_;
  BlockWeights weights_;
};

}  // namespace skipdec
