// Samples a token from a row of logits by a uniform number, with the CPU kernels, like Python.
#pragma once

#include <cstdint>

#include "sampling/draw.h"
#include "tokens/sampling_params.h"

namespace skipdec::runtime {

// Samples with one request's parameters: min_p, top_k, top_p, softmax, draw.
class Drawer {
 public:
  // Throws Error (kEnvironment) if SKIPDEC_INSTRUCTION_SET names a set that cannot run here.
  explicit Drawer(const SamplingParams& params);

  // Samples as for temperature 0: chooses the first of the most probable tokens.
  static const Drawer& greedy();

  // Returns the index in ``logits`` [size] that ``uniform``, in [0, 1), selects, or for temperature
  // 0 the first of the most probable tokens; -1 if a logit is NaN or +infinity, or none is finite.
  // ``token_ids`` [size], ascending, are those of the logits; nullptr: their indices.
  std::int64_t draw(const float* logits, std::int64_t size, double uniform,
                    const std::int64_t* token_ids = nullptr) const;

  // Returns the sum of e^(logit - best) over ``logits`` [size]; ``best`` is the largest of them.
  double sum_weights(const float* logits, std::int64_t size, float best) const {
    return drawing_.sum_weights(logits, size, best);
  }

 private:
  explicit Drawer(const Draw& draw);

  Draw draw_;
  Drawing drawing_;
};

}  // namespace skipdec::runtime
