#include "operators/activation.h"

#include "operators/context.h"

namespace skipdec {

Activation activation_of(const NodeInfo& node) {
  const std::int64_t number = node.attribute("activation", std::int64_t{0});
  require(number >= 0 && number <= 2, "activation must be 0 (none), 1 (ReLU) or 2 (GELU)");
  return static_cast<Activation>(number);
}

}  // namespace skipdec
