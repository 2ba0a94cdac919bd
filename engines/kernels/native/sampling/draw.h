// Samples one token from a row of logits.
//
// A token's weight is e^((logit − best) / temperature), in float32 by the exp of
// simd/functions.inc.h; sums of weights and everything compared with them are float64. Weights have
// the same bits on every instruction set and thread, so equal uniform numbers select equal tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "simd/tables.h"

namespace skipdec {

// Parameters, applied in this order: min_p, top_k, top_p, draw. The order of fields is part of the
// library's interface.
struct Draw {
  float inverse_temperature = 1;
  float margin = 0;        // excludes logits below best + margin (min_p); -infinity: none
  std::int64_t top_k = 0;  // keeps the k largest, and ties with the k-th; 0: all
  // Keeps the fewest largest weights whose sum reaches this share of the remaining total. Of equal
  // weights at the border, the lower token ids are kept.
  double top_p = 1;
  // In [0, 1). Chooses the first token, in order of token ids, at which the running sum of weights
  // exceeds this share of the remaining total.
  double uniform = 0;
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

// Functions of one instruction set.
struct Drawing {
  DrawToken draw_token;
  SumWeights sum_weights;
};

SKIPDEC_TABLES(Drawing, drawing)

}  // namespace skipdec
