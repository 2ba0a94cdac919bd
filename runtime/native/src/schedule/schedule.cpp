#include "schedule/schedule.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {
Schedule::Schedule(std::int64_t num_layers, std::vector<Segment> segments, PromptRule prompt,
                   std::string text)
    : num_layers_(num_layers),
      segments_(std::move(segments)),
      prompt_(std::move(prompt)),
      text_(std::move(text)) {
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
