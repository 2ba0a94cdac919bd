#include "operators/activation.h"

#include "operators/context.h"

namespace skipdec {

Activation activation_of(const NodeInfo& node) {
  const std::int64_t number = node.attribute("activation", std::int64_t{0});
  require(number >= 0 && number <= 3,
          "activation must be 0 (none), 1 (ReLU), 2 (GELU) or 3 (SiLU)");
  return static_cast<Activation>(number);
}

}  // namespace skipdec
