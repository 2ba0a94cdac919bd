// skipdec::QuantizedLinear: a linear layer with int8 weights, which quantises its input rows
// itself.
#pragma once

#include <array>

#include "int8/integer_product.h"
#include "operators/context.h"
#include "operators/custom_operator.h"

namespace skipdec {

// Inputs: x f32 [..., K]; weight int8 [Np/16, Kp/4, 16, 4], scale f32 [N], offset int32 [N] and
// optionally bias f32 [N], all initialisers; optionally residual f32 [..., N]. Output: f32 [...,
// N], as int8/integer_product.h defines it. Attributes: activation, gated.
class QuantizedLinear {
 public:
  static constexpr const char* kName = "QuantizedLinear";
  static constexpr std::array<Operand, 6> kInputs{{
      {abi::ElementType::kFloat},
      {abi::ElementType::kInt8},
      {abi::ElementType::kFloat},
      {abi::ElementType::kInt32},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
  }};
  static constexpr std::array<Operand, 1> kOutputs{{{abi::ElementType::kFloat}}};
  static constexpr int kInplaceInput = 5;

  // Throws OperatorError if the initialisers' shapes are inconsistent or not those of packed
  // weights.
  explicit QuantizedLinear(const NodeInfo& node);

  // Throws OperatorError if x or residual have the wrong shape.
  void compute(const CallContext& call) const;

 private:
  void run(const CallContext& call, IntegerRows& rows) const;

  InstructionSet instruction_set_;
  IntegerWeights weights_;
};

}  // namespace skipdec
