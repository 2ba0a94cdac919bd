#include "schedule/schedule.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "constants.h"
#include "errors.h"

namespace skipdec::runtime {
namespace {

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(Status::kSchedule, "exit schedule", problem);
}

void check_layers(const Segment& segment, std::int64_t num_layers) {
  const std::string start = "generated token " + std::to_string(segment.start);
  if (segment.layers.empty()) refuse(start + " runs no layers; allowed: 1 or more");
  std::int64_t least = 0;
  for (const std::int64_t layer : segment.layers) {
    if (layer < least || layer >= num_layers)
      refuse(start + " runs layer " + std::to_string(layer) + "; allowed there: " +
             std::to_string(least) + " to " + std::to_string(num_layers - 1) + ", ascending");
    least = layer + 1;
  }
}

// Each segment's layers are among those of the one before.
void check_segments(const std::vector<Segment>& segments, std::int64_t num_layers) {
  constexpr auto kMost = static_cast<std::size_t>(constants::kMaxHorizon) + 1;
  if (segments.empty() || segments.size() > kMost)
    refuse("has " + std::to_string(segments.size()) + " segments; allowed: 1 to " +
           std::to_string(kMost));
  if (segments.front().start != 0)
    refuse("begins at generated token " + std::to_string(segments.front().start) + "; allowed: 0");
  for (const Segment& segment : segments) check_layers(segment, num_layers);
  for (std::size_t i = 1; i < segments.size(); ++i) {
    const LayerPlan& before = segments[i - 1].layers;
    const LayerPlan& after = segments[i].layers;
    const std::int64_t start = segments[i].start;
    if (start <= segments[i - 1].start || start > constants::kMaxHorizon)
      refuse("a segment begins at generated token " + std::to_string(start) + "; allowed behind " +
             std::to_string(segments[i - 1].start) + ": up to " +
             std::to_string(constants::kMaxHorizon));
    if (std::includes(before.begin(), before.end(), after.begin(), after.end())) continue;
    LayerPlan missing;
    std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                        std::back_inserter(missing));
    refuse("generated token " + std::to_string(start) + " runs layer " +
           std::to_string(missing.front()) + ", which token " + std::to_string(start - 1) +
           " did not: a hole in that layer's KV cache; allowed: sets of layers that only shrink");
  }
}

void check_prompt(const PromptRule& prompt, const LayerPlan& first, std::int64_t num_layers) {
  if (prompt.numerators.empty()) return;
  if (static_cast<std::int64_t>(prompt.numerators.size()) != num_layers)
    refuse("the prompt's rule is for " + std::to_string(prompt.numerators.size()) +
           " layers; expected: " + std::to_string(num_layers));
  const auto is_part = [](std::int64_t number) {
    return number >= 0 && number <= PromptRule::kMost;
  };
  if (prompt.denominator < 1 || !is_part(prompt.denominator))
    refuse("the prompt's denominator is " + std::to_string(prompt.denominator) +
           "; allowed: 1 to " + std::to_string(PromptRule::kMost));
  for (const std::int64_t numerator : prompt.numerators)
    if (numerator != PromptRule::kAll && !is_part(numerator))
      refuse("one of the prompt's numerators is " + std::to_string(numerator) + "; allowed: 0 to " +
             std::to_string(PromptRule::kMost));
  for (const std::int64_t layer : first) {
    const std::int64_t numerator = prompt.numerators[static_cast<std::size_t>(layer)];
    if (numerator != PromptRule::kAll && numerator < prompt.denominator)
      refuse("generated token 0 runs layer " + std::to_string(layer) +
             ", which the last tokens of a prompt do not: a hole in that layer's KV cache");
  }
}

}  // namespace

Schedule::Schedule(std::int64_t num_layers, std::vector<Segment> segments, PromptRule prompt,
                   std::string text)
    : num_layers_(num_layers),
      segments_(std::move(segments)),
      prompt_(std::move(prompt)),
      text_(std::move(text)) {
  if (num_layers < 1 || num_layers > constants::kMaxLayers)
    refuse("is for " + std::to_string(num_layers) + " layers; allowed: 1 to " +
           std::to_string(constants::kMaxLayers));
  check_segments(segments_, num_layers);
  check_prompt(prompt_, segments_.front().layers, num_layers);
  last_indices_.assign(static_cast<std::size_t>(num_layers), -1);
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const bool is_last = i + 1 == segments_.size();
    for (const std::int64_t layer : segments_[i].layers)
      last_indices_[static_cast<std::size_t>(layer)] =
          is_last ? kForever : segments_[i + 1].start - 1;
  }
  all_.resize(static_cast<std::size_t>(num_layers));
  std::iota(all_.begin(), all_.end(), 0);
  std::copy_if(all_.begin(), all_.end(), std::back_inserter(last_prompt_),
               [this](std::int64_t layer) { return prompt_prefix(layer, 2) == 2; });
}

bool Schedule::is_reduced() const {
  return static_cast<std::int64_t>(segments_.back().layers.size()) < num_layers_;
}

bool Schedule::exits_early() const {
  return std::all_of(segments_.begin(), segments_.end(), [](const Segment& segment) {
    return segment.layers.back() + 1 == static_cast<std::int64_t>(segment.layers.size());
  });
}

const LayerPlan& Schedule::layers(std::int64_t count) const {
  const auto is_meant = [count](const LayerPlan& plan) {
    return static_cast<std::int64_t>(plan.size()) == count;
  };
  for (const LayerPlan* plan : {&all_, &last_prompt_}) {
    if (is_meant(*plan)) return *plan;
  }
  const auto found = std::find_if(segments_.begin(), segments_.end(),
                                  [&](const Segment& each) { return is_meant(each.layers); });
  if (found != segments_.end()) return found->layers;
  throw Error(
      Status::kUsage, "count",
      "is " + std::to_string(count) + "; no token of schedule " + text_ + " runs as many layers");
}

const LayerPlan& Schedule::plan(std::int64_t index) const {
  const auto behind = std::upper_bound(
      segments_.begin(), segments_.end(), index,
      [](std::int64_t wanted, const Segment& each) { return wanted < each.start; });
  return std::prev(behind)->layers;
}

std::int64_t Schedule::prompt_prefix(std::int64_t layer, std::int64_t length) const {
  const std::int64_t numerator = prompt_.numerators.empty()
                                     ? PromptRule::kAll
                                     : prompt_.numerators[static_cast<std::size_t>(layer)];
  if (numerator == PromptRule::kAll) return length;
  return std::min(length, numerator * (length - 1) / prompt_.denominator + 1);
}

std::int64_t Schedule::prompt_depth(std::int64_t index, std::int64_t length) const {
  if (prompt_.numerators.empty()) return num_layers_;
  std::int64_t depth = 0;
  for (std::int64_t layer = 0; layer < num_layers_; ++layer)
    if (index < prompt_prefix(layer, length)) ++depth;
  return depth;
}

std::vector<std::int64_t> Schedule::active_lengths(std::int64_t prompt_length,
                                                   std::int64_t num_fed) const {
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(num_layers_));
  for (std::int64_t layer = 0; layer < num_layers_; ++layer) {
    const std::int64_t last = last_index(layer);
    const std::int64_t steps = last == kForever ? num_fed : std::min(num_fed, last + 1);
    lengths.push_back(prompt_prefix(layer, prompt_length) + steps);
  }
  return lengths;
}

}  // namespace skipdec::runtime
