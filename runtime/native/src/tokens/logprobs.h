// Log-probabilities of one row of logits: the chosen token's, and the most probable ones'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "errors.h"

namespace skipdec::runtime {

// Under the raw distribution: no penalty, mask or temperature.
struct Logprob {
  std::int64_t token_id = 0;
  double logprob = 0;
  std::int64_t rank = 0;  // 1 is the most probable token
};

// Of ``logits`` [size]: ``token_id`` first, then the ``count`` best without it, ties by token id.
// ``count`` <= ``size``. Throws Error (kEngine) as `chosen_logprob` does.
std::vector<Logprob> row_logprobs(const float* logits, std::int64_t size, std::int64_t token_id,
                                  std::int64_t count, const std::string& subject);

// Log-softmax of ``logits`` [size] at ``token_id``: weights in float32, their sum in float64,
// within 1e-5 of Python's runtime/requests/scoring.py, whose exp is numpy's. Throws Error (kEngine)
// if a logit is NaN or +infinity, or none is finite; ``subject`` names the row.
double chosen_logprob(const float* logits, std::int64_t size, std::int64_t token_id,
                      const std::string& subject);

// What is wrong with ``logits`` [size] that allow no token to be chosen.
Error not_finite(const float* logits, std::int64_t size, const std::string& subject);

}  // namespace skipdec::runtime
