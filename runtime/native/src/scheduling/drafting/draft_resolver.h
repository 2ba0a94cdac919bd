// The drafts of an engine and of a request, checked against the bundle that runs them.
#pragma once

#include <optional>
#include <string>

#include "bundle/manifest.h"
#include "schedule/schedule.h"
#include "scheduling/drafting/draft_config.h"

namespace skipdec::runtime {

// Reads the drafts of an engine; an empty text and "off" mean none, and "auto" those that the
// bundle recommends, or "own". Chooses the model's layers of the part that runs some. Throws Error
// (kUsage) for an invalid text, for what the bundle does not have, and for a bundle in which drafts
// could change texts: skipdec's kernels give the same bits for a token whatever else is in the
// call, but products of float32 weights are ONNX Runtime's own, and so are all operators of other
// bundles.
std::optional<DraftConfig> resolve_draft(const std::string& text, const Manifest& manifest);

// Returns a warning if drafts of layers run some that no token of ``schedule`` runs, so that they
// draft nothing; else "".
std::string unused_draft_warning(const DraftConfig& config, const Schedule& schedule);

// Returns the bytes that a draft step of ``part`` reads ÷ those of a pass, heads included: what
// it should cost, since at small batches engines run at about memory bandwidth. It scores by the
// bundle's narrow head, if there is one, or trained drafts by their own. 0 for n-grams.
double byte_share(const Manifest& manifest, const DraftPart& part);

// Returns whether a request takes part in drafts: "off" switches them off for it alone. Throws
// Error (kUsage) for another text that is not empty.
bool wants_drafts(const std::string& text);

}  // namespace skipdec::runtime
