// Activation that a product applies to its sums before it adds a residual.
#pragma once

namespace skipdec {

class NodeInfo;

enum class Activation { kNone = 0, kRelu = 1, kGelu = 2 };  // kGelu: x · Φ(x), with erf

// Reads the attribute "activation" of a node. Throws OperatorError for an unknown number.
Activation activation_of(const NodeInfo& node);

}  // namespace skipdec
