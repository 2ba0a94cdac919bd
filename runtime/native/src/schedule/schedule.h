// An exit schedule, resolved: which layers each token runs.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace skipdec::runtime {

// The layers that one step runs, lowest first. A schedule owns its plans, which are compared by
// address.
using LayerPlan = std::vector<std::int64_t>;

// A run of generated tokens with one plan, from ``start`` to the start of the next segment.
struct Segment {
  std::int64_t start = 0;
  LayerPlan layers;
};

// The rule for how many of a prompt's first tokens run a layer: all of them if ``numerators`` is
// empty or holds kAll, else min(length, numerator * (length - 1) / denominator + 1).
struct PromptRule {
  static constexpr std::int64_t kAll = -1;
  std::vector<std::int64_t> numerators;
  std::int64_t denominator = 1;
};

// Immutable. Budgets never grow and sets of layers are nested (SkipDecode, arXiv 2307.02628), so
// the tokens that run a layer are always the first ones of a row.
//
// Worked: 6 layers, segments {0: [0,1,2,3,4,5]}, {1: [0,4,5]}, {3: [0,5]}: generated token 2 runs
// [0,4,5]; last_index(4) is 2, last_index(5) kForever, last_index(1) 0.
class Schedule {
 public:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

  // ``segments`` begin at 0, and each has a subset of the layers of the one before; see
  // `schedule_of`.
  Schedule(std::int64_t num_layers, std::vector<Segment> segments, PromptRule prompt,
           std::string text);

  std::int64_t num_layers() const { return num_layers_; }
  const std::string& text() const { return text_; }  // e.g. "linear:max=16,min=8,…"
  bool is_reduced() const;
  bool exits_early() const;  // each token runs the lowest layers

  // Returns the layers that generated token ``index`` >= 0 runs when it is fed back.
  const LayerPlan& plan(std::int64_t index) const;
  // Returns the last generated index at which ``layer`` runs; -1 if none, kForever if it never
  // stops.
  std::int64_t last_index(std::int64_t layer) const {
    return last_indices_[static_cast<std::size_t>(layer)];
  }
  // Returns how many tokens of a prompt of ``length``, from the first on, run ``layer``.
  std::int64_t prompt_prefix(std::int64_t layer, std::int64_t length) const;
  // Returns the number of layers that token ``index`` of a prompt of ``length`` tokens runs.
  std::int64_t prompt_depth(std::int64_t index, std::int64_t length) const;
  // Returns the layers of a generated token, or the last of a prompt, that runs ``count`` layers.
  // Throws Error (kUsage) for a count that no such token has.
  const LayerPlan& layers(std::int64_t count) const;
  // Returns the number of tokens that run each layer, for a prompt and ``num_fed`` generated tokens
  // that are fed back.
  std::vector<std::int64_t> active_lengths(std::int64_t prompt_length, std::int64_t num_fed) const;

 private:
  std::int64_t num_layers_;
  std::vector<Segment> segments_;
  PromptRule prompt_;
  std::string text_;
  std::vector<std::int64_t> last_indices_;
  LayerPlan all_;          // layers of the model
  LayerPlan last_prompt_;  // layers of the last token of a prompt of two or more
};

using SchedulePointer = std::shared_ptr<const Schedule>;

}  // namespace skipdec::runtime
