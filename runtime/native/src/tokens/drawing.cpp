#include "tokens/drawing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "errors.h"
#include "operators/context.h"
#include "processor/instruction_set.h"

namespace skipdec::runtime {
namespace {

constexpr Draw kGreedy{1.0F, 0.0F, 0, 1.0, -1.0, nullptr};

InstructionSet instruction_set() {
  try {
    return chosen_instruction_set();
  } catch (const OperatorError& error) {
    throw Error(Status::kEnvironment, "kernels", error.what());
  }
}

// Returns the margin of logits for min_p, which keeps p ≥ min_p · p_best.
float min_p_margin(const SamplingParams& params) {
  if (params.min_p <= 0) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(params.temperature * std::log(params.min_p));
}

Draw draw_of(const SamplingParams& params) {
  if (params.greedy()) return kGreedy;
  Draw draw;
  draw.inverse_temperature = static_cast<float>(1.0 / params.temperature);
  draw.margin = min_p_margin(params);
  draw.top_k = std::max<std::int64_t>(0, params.top_k);
  draw.top_p = params.top_p;
  return draw;
}

}  // namespace

Drawer::Drawer(const Draw& draw) : draw_(draw), drawing_(drawing(instruction_set())) {}

Drawer::Drawer(const SamplingParams& params) : Drawer(draw_of(params)) {}

const Drawer& Drawer::greedy() {
  static const Drawer drawer(kGreedy);
  return drawer;
}

std::int64_t Drawer::draw(const float* logits, std::int64_t size, double uniform,
                          const std::int64_t* token_ids) const {
  static thread_local DrawScratch scratch;  // some megabytes, shared by all sequences of the thread
  Draw draw = draw_;
  if (draw.uniform >= 0) draw.uniform = uniform;
  draw.token_ids = token_ids;
  return drawing_.draw_token(draw, logits, size, scratch);
}

}  // namespace skipdec::runtime
