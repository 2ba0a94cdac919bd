// Which token a uniform number draws from a row of logits: the CPU kernels' way, as in Python.
#pragma once

#include <cstdint>

#include "sampling/draw.h"
#include "tokens/sampling_params.h"

namespace skipdec::runtime {

// Draws as one request's parameters say: min_p, top_k, top_p, softmax, draw.
class Drawer {
 public:
  // Throws Error (kEnvironment) if SKIPDEC_INSTRUCTION_SET names what can't run here.
  explicit Drawer(const SamplingParams& params);

  // As for temperature 0: the number 0 draws the first of the most probable tokens.
  static Drawer greedy();

  // The first place in ``logits`` [size] with which the sum of what is left passes the share
  // ``uniform``, in [0, 1), of it; -1 if a logit is NaN or +infinity, or none is finite.
  std::int64_t draw(const float* logits, std::int64_t size, double uniform) const;

  // The sum of e^(logit - best) over ``logits`` [size], of which ``best`` is the largest.
  double sum_weights(const float* logits, std::int64_t size, float best) const {
    return sum_weights_(logits, size, best);
  }

 private:
  explicit Drawer(const Draw& draw);

  Draw draw_;
  DrawToken draw_token_;
  SumWeights sum_weights_;
};

}  // namespace skipdec::runtime
