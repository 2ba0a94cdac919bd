// What each engine of a bundle takes and gives, whatever the manifest says of it.
#pragma once

#include <string>

#include "bundle/manifest.h"

namespace skipdec::runtime {

// Throws Error (kBundle), all problems at once, unless the runtime can run engines so described:
// each kind has its roles, each role its type and shape with the model's own sizes, and all layers
// have plans for the same KV capacities.
void check_contract(const Manifest& manifest, const std::string& subject);

}  // namespace skipdec::runtime
