#include "scheduling/drafting/draft_resolver.h"

#include <algorithm>

#include "errors.h"
#include "json/shown.h"

namespace skipdec::runtime {

namespace {

constexpr const char* kRecommended = "own";  // if the manifest names no drafts

void find_inexact(const Manifest& manifest, std::vector<std::string>& problems) {
  if (!manifest.uses_skipdec_kernels) {
    problems.emplace_back(
        "needs skipdec's kernels: with ONNX Runtime's operators texts may differ by rounding; "
        "export the model with --kernels skipdec, or allow it with exact=no");
  } else if (!manifest.foreign_products.empty()) {
    std::string kinds = manifest.foreign_products.front();
    if (manifest.foreign_products.size() > 1) kinds += " and " + manifest.foreign_products.back();
    problems.push_back(
        "needs products of skipdec's kernels: those of " + kinds +
        " weights are ONNX Runtime's, and texts may differ by rounding; export the model with a "
        "block size of 32, 64 or 128 and accuracy level 4, or allow it with exact=no");
  }
}

// Chooses the layers of a part, lowest first, or adds the problem if the bundle has none.
void choose_layers(DraftPart& part, const Manifest& manifest, std::vector<std::string>& problems) {
  const std::int64_t depth = manifest.model.num_layers;
  if (part.kind->name == "trained" && !manifest.trained_draft)
    problems.emplace_back(
        "trained needs a draft layer, which the bundle does not have; train one with `skipdec "
        "tune --draft-layer` and export the model with --draft-layer");
  if (!part.number) return;
  if (*part.number >= depth) {
    problems.push_back(part.text() + " runs " + std::to_string(*part.number) + " layers of " +
                       std::to_string(depth) + "; allowed: 1 to " + std::to_string(depth - 1) +
                       ", and 2 to 4 are fast");
    return;
  }
  for (std::int64_t index = 0; index < *part.number; ++index) {
    const bool is_top = part.kind->name == "ends" && index > 0;
    part.layers.push_back(is_top ? depth - *part.number + index : index);
  }
}

}  // namespace

std::optional<DraftConfig> resolve_draft(const std::string& text, const Manifest& manifest) {
  if (text.empty()) return std::nullopt;
  std::optional<DraftConfig> config =
      DraftConfig::parse(is_auto(text) ? manifest.draft.value_or(kRecommended) : text);
  if (!config) return config;
  std::vector<std::string> problems;
  if (config->exact) find_inexact(manifest, problems);
  for (DraftPart& part : config->parts) choose_layers(part, manifest, problems);
  if (!problems.empty()) throw Error(Status::kUsage, "draft", problems);
  return config;
}

std::string unused_draft_warning(const DraftConfig& config, const Schedule& schedule) {
  const LayerPlan& most = schedule.plan(0);  // later plans are parts of it
  for (const DraftPart& part : config.parts) {
    const auto is_run = [&](std::int64_t layer) {
      return std::binary_search(most.begin(), most.end(), layer);
    };
    if (!std::all_of(part.layers.begin(), part.layers.end(), is_run))
      return "draft " + part.text() + " needs layers that schedule " + schedule.text() +
             " never runs, so it drafts nothing: choose fewer layers, another part, or a deeper "
             "schedule";
  }
  return "";
}

double byte_share(const Manifest& manifest, const DraftPart& part) {
  if (!part.kind->runs_layers) return 0;
  // As floats, because each may be up to INT64_MAX.
  const auto bytes = [](const EngineSpec& spec) { return static_cast<double>(spec.step_bytes); };
  double whole = bytes(manifest.embed) + bytes(manifest.head);
  for (const EngineSpec& layer : manifest.layers) whole += bytes(layer);
  double read = bytes(manifest.embed);
  if (part.kind->name == "trained") {
    const TrainedDraft& draft = *manifest.trained_draft;
    read += bytes(draft.entry) + bytes(draft.layer) + bytes(draft.head);
  } else {
    for (const std::int64_t layer : part.layers)
      read += bytes(manifest.layers[static_cast<std::size_t>(layer)]);
    read += bytes(manifest.draft_head ? manifest.draft_head->engine : manifest.head);
  }
  return read / std::max(1.0, whole);
}

bool wants_drafts(const std::string& text) {
  if (text.empty()) return true;
  if (text == "off") return false;
  throw Error(Status::kUsage, "draft",
              "is " + shown_text(text) +
                  "; allowed in a request: off, or none given; drafts are chosen when the bundle "
                  "is opened");
}

}  // namespace skipdec::runtime
