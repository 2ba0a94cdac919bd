// draft.json: the drafts that a bundle recommends.
#pragma once

#include <string>

#include "bundle/bundle.h"

namespace skipdec::runtime {

// Returns the text that "auto" stands for: that of the bundle's draft.json, or "own" without one.
// Throws Error (kBundle) for a damaged file.
std::string recommended_draft(const Bundle& bundle);

}  // namespace skipdec::runtime
