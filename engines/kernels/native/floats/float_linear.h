// The operator FloatLinear: y = activation(x · W + bias) + residual, with float weights.
#pragma once

#include <array>

#include "floats/float_product.h"
#include "operators/context.h"
#include "operators/custom_operator.h"

namespace skipdec {

// Inputs: x float32 [..., K], weight float32, float16 or bfloat16 [ceil(N / 16), K, 16] (an
// initialiser), bias float32 [N] (an initialiser, optional), residual float32 [..., N] (optional).
// Attributes: N, activation, gated.
class FloatLinear {
 public:
  static constexpr const char* kName = "FloatLinear";
  static constexpr std::array<Operand, 4> kInputs{{
      {abi::ElementType::kFloat},
      {abi::ElementType::kAny},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
  }};
  static constexpr std::array<Operand, 1> kOutputs{{{abi::ElementType::kFloat}}};
  static constexpr int kInplaceInput = 3;

  explicit FloatLinear(const NodeInfo& node);
  void compute(const CallContext& call) const;

 private:
  void run(const CallContext& call, FloatRows& rows) const;
  void run_by_rows(const CallContext& call, const FloatRows& rows, std::int64_t step) const;

  const FloatKernels& kernels_;
  FloatWeights weights_;
  FloatKernels::Multiply multiply_;
};

}  // namespace skipdec
