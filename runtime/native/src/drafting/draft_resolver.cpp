#include "drafting/draft_resolver.h"

#include "errors.h"
#include "json/shown.h"

namespace skipdec::runtime {

namespace {

void find_inexact(const Manifest& manifest, std::vector<std::string>& problems) {
  if (!manifest.uses_skipdec_kernels) {
    problems.emplace_back(
        "needs skipdec's kernels: with ONNX Runtime's operators texts may differ by rounding; "
        "rewrite the bundle with `skipdec build BUNDLE --target onnxruntime --kernels skipdec`, or "
        "allow it with exact=no");
  } else if (manifest.has_float32_products) {
    problems.emplace_back(
        "needs weights of int8, int4 or 16 bits: products of float32 weights are ONNX Runtime's, "
        "and texts may differ by rounding; export the model with --quantize int8, or allow it with "
        "exact=no");
  }
}

void find_beyond_depth(const DraftConfig& config, std::int64_t depth,
                       std::vector<std::string>& problems) {
  for (const DraftPart& part : config.parts) {
    if (!part.number || *part.number < depth) continue;
    problems.push_back(part.text() + " runs " + std::to_string(*part.number) + " layers of " +
                       std::to_string(depth) + "; allowed: 1 to " + std::to_string(depth - 1) +
                       ", and 2 to 4 are fast");
  }
}

// Refuses what needs engines that bundles do not have yet.
void find_missing(const DraftConfig& config, std::vector<std::string>& problems) {
  for (const DraftPart& part : config.parts) {
    if (part.kind->name == "trained") {
      problems.emplace_back("trained needs a draft layer, which the bundle does not have");
    }
  }
  if (config.head) {
    problems.push_back("head is " + std::to_string(*config.head) +
                       "; the bundle has no head for a part of its vocabulary; leave out head");
  }
}

// Chooses the layers of a part that runs some, lowest first.
void choose_layers(DraftPart& part, std::int64_t depth, const Schedules& schedules,
                   std::vector<std::string>& problems) {
  if (!part.number) return;
  if (part.kind->name == "layers") {
    if (*part.number >= schedules.least_layers()) {
      part.layers = schedules.placed(*part.number);
    } else {
      problems.push_back(part.text() + ": min_exit_layer is " + std::to_string(*part.number) +
                         "; allowed with placement " + schedules.placement() + ": " +
                         std::to_string(schedules.least_layers()) +
                         " or more; take another number, ends:N or first:N");
    }
    return;
  }
  for (std::int64_t place = 0; place < *part.number; ++place) {
    const bool is_top = part.kind->name == "ends" && place > 0;
    part.layers.push_back(is_top ? depth - *part.number + place : place);
  }
}

}  // namespace

std::optional<DraftConfig> resolve_draft(const std::string& text, const Manifest& manifest,
                                         const Schedules& schedules) {
  if (text.empty()) return std::nullopt;
  std::optional<DraftConfig> config = DraftConfig::parse(text);
  if (!config) return config;
  std::vector<std::string> problems;
  if (config->exact) find_inexact(manifest, problems);
  find_beyond_depth(*config, manifest.model.num_layers, problems);
  find_missing(*config, problems);
  for (DraftPart& part : config->parts) {
    if (problems.empty()) choose_layers(part, manifest.model.num_layers, schedules, problems);
  }
  if (!problems.empty()) throw Error(Status::kUsage, "draft", problems);
  return config;
}

bool wants_drafts(const std::string& text) {
  if (text.empty()) return true;
  if (is_off(text)) return false;
  throw Error(Status::kUsage, "draft",
              "is " + shown_text(text) +
                  "; allowed in a request: off, or none given; drafts are chosen when the bundle "
                  "is opened");
}

}  // namespace skipdec::runtime
