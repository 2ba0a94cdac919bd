// Samples one token from a row of logits.
//
// A token's weight is e^((logit − best) / temperature), in float32 by the exp of
// simd/functions.inc.h; sums of weights and everything compared with them are float64. The uniform
// number and a token's id give it an exponentially distributed number, and the token with the
// largest weight per such number is chosen (the Gumbel-max trick): each with the probability of its
// share, and mostly the same one from two rows of similar logits. Weights and exponential numbers
// have the same bits on every instruction set and thread, so equal uniform numbers select equal
// tokens.
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
  // In [0, 1). If negative, the most probable token is chosen, the first of equal ones.
  double uniform = 0;
  // Ids of the logits' tokens, ascending, not owned; nullptr: their indices.
  const std::int64_t* token_ids = nullptr;
};

// Scratch memory for calls: it grows to a few times the vocabulary.
struct DrawScratch {
  std::vector<float> block_maxima, block_weights, kept, weights, largest;
  std::vector<double> class_sums;
  std::vector<std::int64_t> ids;
};

// Returns the index of the chosen token in logits [size]; -1 if a logit is NaN or +infinity, or
// none is finite.
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
