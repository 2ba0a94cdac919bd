// Resolves the drafts of an engine and of a request, and checks them against the bundle.
#pragma once

#include <optional>
#include <string>

#include "bundle/manifest.h"
#include "schedule/schedule.h"
#include "scheduling/drafting/draft_config.h"

namespace skipdec::runtime {

// Parses the drafts of an engine: an empty text and "off" mean none, and "auto" means those that
// the bundle recommends, or "own". Chooses the model's layers for a part that runs some. Throws
// Error (kUsage) for an invalid text, for drafts that the bundle lacks, and for a bundle in which
// drafts could change texts: skipdec's kernels give a token the same bits whatever else is in the
// call, but products of float32 weights, and all operators of other bundles, are ONNX Runtime's.
std::optional<DraftConfig> resolve_draft(const std::string& text, const Manifest& manifest);

// Returns a warning if drafts of layers run layers that no token of ``schedule`` runs, and so draft
// nothing; else "".
std::string unused_draft_warning(const DraftConfig& config, const Schedule& schedule);

// Returns the bytes that a draft step of ``part`` reads ÷ those of a pass, heads included. This
// predicts its cost, because engines are about memory-bandwidth bound at small batches. Drafts
// score with the bundle's narrow head, if there is one; trained drafts have their own head. 0 for
// n-grams.
double byte_share(const Manifest& manifest, const DraftPart& part);

// Returns true if a request takes part in drafts, which "off" switches off for it alone. Throws
// Error (kUsage) for any other text that is not empty.
bool wants_drafts(const std::string& text);

}  // namespace skipdec::runtime
