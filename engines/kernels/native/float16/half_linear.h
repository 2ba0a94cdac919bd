// The operator HalfLinear: y = activation(x · W + bias) + residual, with 16-bit weights.
#pragma once

#include <array>

#include "float16/half_product.h"
#include "operators/context.h"
#include "operators/custom_operator.h"

namespace skipdec {

// Inputs: x float32 [..., K], weight float16 or bfloat16 [ceil(N / 16), K, 16] (an initialiser),
// bias float32 [N] (an initialiser, optional), residual float32 [..., N] (optional).
// Attributes: N, activation.
class HalfLinear {
 public:
  static constexpr const char* kName = "HalfLinear";
  static constexpr std::array<Operand, 4> kInputs{{
      {abi::ElementType::kFloat},
      {abi::ElementType::kAny},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
  }};
  static constexpr std::array<Operand, 1> kOutputs{{{abi::ElementType::kFloat}}};
  static constexpr int kInplaceInput = 3;

  explicit HalfLinear(const NodeInfo& node);
  void compute(const CallContext& call) const;

 private:
  void run(const CallContext& call, HalfRows& rows) const;

  const HalfKernels& kernels_;
  HalfKernels::Multiply multiply_;
  HalfWeights weights_;
};

}  // namespace skipdec
