// What a product does to its sums before it adds a residual.
#pragma once

namespace skipdec {

class NodeInfo;

enum class Activation { kNone = 0, kRelu = 1, kGelu = 2 };  // kGelu: x · Φ(x), with erf

// The attribute "activation" of a node. Throws OperatorError for another number.
Activation activation_of(const NodeInfo& node);

}  // namespace skipdec
