// Activation that a product applies to its sums before it adds a residual or is multiplied.
#pragma once

namespace skipdec {

class NodeInfo;

// kGelu: x · Φ(x), with erf. kSilu: x / (1 + e^−x).
enum class Activation { kNone = 0, kRelu = 1, kGelu = 2, kSilu = 3 };

// Reads the attribute "activation" of a node. Throws OperatorError for an unknown number.
Activation activation_of(const NodeInfo& node);

}  // namespace skipdec
