// Log-probabilities of one row of logits: of the chosen token and the most probable ones.
#pragma once

#include <skipdec/skipdec.h>

#include <cstdint>
#include <string>
#include <vector>

#include "errors.h"

namespace skipdec::runtime {

// A log-probability of the raw distribution, without penalty, mask or temperature.
using Logprob = skipdec_logprob;

// Returns ``token_id`` first, then the ``count`` <= ``size`` best others of ``logits`` [size], ties
// by token id. Throws Error (kEngine) like `chosen_logprob`.
std::vector<Logprob> row_logprobs(const float* logits, std::int64_t size, std::int64_t token_id,
                                  std::int64_t count, const std::string& subject);

// Returns the softmax of ``logits`` [size] at ``index``; NaN if the logits are not numbers.
double probability_of(const float* logits, std::int64_t size, std::int64_t index);

// Returns the log-softmax of ``logits`` [size] at ``token_id``: weights in float32, their sum in
// float64, within 1e-5 of Python's runtime/scheduling/scoring.py, which uses numpy's exp. Throws
// Error (kEngine) if a logit is NaN or +infinity, or none is finite; ``subject`` names the row.
double chosen_logprob(const float* logits, std::int64_t size, std::int64_t token_id,
                      const std::string& subject);

// Describes why no token can be chosen from ``logits`` [size].
Error not_finite(const float* logits, std::int64_t size, const std::string& subject);

}  // namespace skipdec::runtime
