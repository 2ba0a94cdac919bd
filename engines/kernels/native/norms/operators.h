// The operators LayerNorm and RmsNorm, over the last axis.
#pragma once

#include <array>

#include "norms/normalization.h"
#include "operators/context.h"
#include "operators/custom_operator.h"

namespace skipdec {

// Inputs: x float32 [..., E], scale float32 [E], bias float32 [E] (optional), the last two
// initialisers. Output: float32 of x's shape. Attribute: epsilon.
class LayerNorm {
 public:
  static constexpr const char* kName = "LayerNorm";
  static constexpr std::array<Operand, 3> kInputs{{
      {abi::ElementType::kFloat},
      {abi::ElementType::kFloat},
      {abi::ElementType::kFloat, abi::Characteristic::kOptional},
  }};
  static constexpr std::array<Operand, 1> kOutputs{{{abi::ElementType::kFloat}}};
  static constexpr int kInplaceInput = 0;

  explicit LayerNorm(const NodeInfo& node);
  void compute(const CallContext& call) const;

 private:
  Normalize normalize_;
  Normalization norm_;
};

// Inputs: x float32 [..., E], scale float32 [E], an initialiser. Output: float32 of x's shape.
// Attribute: epsilon.
class RmsNorm {
 public:
  static constexpr const char* kName = "RmsNorm";
  static constexpr std::array<Operand, 2> kInputs{{
      {abi::ElementType::kFloat},
      {abi::ElementType::kFloat},
  }};
  static constexpr std::array<Operand, 1> kOutputs{{{abi::ElementType::kFloat}}};
  static constexpr int kInplaceInput = 0;

  explicit RmsNorm(const NodeInfo& node);
  void compute(const CallContext& call) const;

 private:
  Normalize normalize_;
  Normalization norm_;
};

}  // namespace skipdec
