// Contract of engines: the inputs and outputs that the runtime gives and expects.
#pragma once

#include <string>

#include "bundle/manifest.h"

namespace skipdec::runtime {

// Throws Error (kBundle), with all problems, unless the runtime can run the described engines:
// each kind has its roles, each role its type and shape with the model's own sizes, and all layers
// have plans for the same KV capacities.
void check_contract(const Manifest& manifest, const std::string& subject);

}  // namespace skipdec::runtime
