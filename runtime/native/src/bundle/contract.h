// The engines' contract: the inputs that the runtime gives, and the outputs that it expects.
#pragma once

#include <string>

#include "bundle/manifest.h"

namespace skipdec::runtime {

// Throws Error (kBundle), with all problems, unless the runtime can run the described engines: each
// kind must have its roles, each role its type and shape with the model's own sizes, and all layers
// must have plans for the same KV capacities.
void check_contract(const Manifest& manifest, const std::string& subject);

}  // namespace skipdec::runtime
