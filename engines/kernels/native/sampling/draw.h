// Samples one token from a row of logits.
//
// A token's weight is e^((logit − best) / temperature), in float32 by the exp of
// simd/functions.inc.h; sums of weights and everything compared with them are float64. Weights have
// the same bits on every instruction set, so equal uniform numbers select equal tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "processor/instruction_set.h"

namespace skipdec {

// Applied in this order: min_p, top_k, top_p, draw. The order of fields is part of the library's
// interface.
struct Draw {
  float inverse_temperature = 1;
  float margin = 0;        // logits below best + margin are excluded (min_p); -infinity: no bound
  std::int64_t top_k = 0;  // keep the k largest, and ties with the k-th; 0: all
  double top_p = 1;        // then the fewest largest that hold this share of all weights left; of
                           // equal ones at the border the first tokens
  double uniform = 0;      // in [0, 1): chosen is the first, in order of token ids, with which the
                           // sum of weights passes this share of those left
};

// Scratch memory for calls: it grows to a few times the vocabulary.
struct DrawScratch {
  std::vector<float> block_maxima, block_weights, kept, weights, largest;
  std::vector<double> class_sums;
  std::vector<std::int64_t> ids;
};

// Returns the chosen token of logits [size]; -1 if a logit is NaN or +infinity, or none is finite.
using DrawToken = std::int64_t (*)(const Draw&, const float* logits, std::int64_t size,
                                   DrawScratch& scratch);

// Returns the sum of e^(logit − best) over logits [size] for log-softmax; ``best`` is the largest.
using SumWeights = double (*)(const float* logits, std::int64_t size, float best);

// Returns the implementation for ``set``, or for the next simpler set that has one.
DrawToken draw_token_on(InstructionSet set);
SumWeights sum_weights_on(InstructionSet set);

}  // namespace skipdec
