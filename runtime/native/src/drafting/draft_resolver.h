// The drafts of an engine and of a request, checked against the bundle that runs them.
#pragma once

#include <optional>
#include <string>

#include "bundle/manifest.h"
#include "drafting/draft_config.h"
#include "schedule/schedules.h"

namespace skipdec::runtime {

// Reads the drafts of an engine; an empty text and "off" mean none. Chooses the layers of the part
// that runs some. Throws Error (kUsage) for an
// invalid text, and for a bundle in which drafts could change texts: skipdec's kernels give the
// same bits for a token whatever else is in the call, but products of float32 weights are ONNX
// Runtime's own, and so are all operators of other bundles.
std::optional<DraftConfig> resolve_draft(const std::string& text, const Manifest& manifest,
                                         const Schedules& schedules);

// Returns whether a request takes part in drafts: "off" switches them off for it alone. Throws
// Error (kUsage) for another text that is not empty.
bool wants_drafts(const std::string& text);

}  // namespace skipdec::runtime
