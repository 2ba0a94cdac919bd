// Penalties of tokens that were seen: repetition, frequency, presence.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tokens/sampling_params.h"

namespace skipdec::runtime {

// Distinct tokens of prompt and output with their output counts, kept up to date by token.
class Penalties {
 public:
  // ``prompt`` matters to the repetition penalty only.
  Penalties(const SamplingParams& params, const std::vector<std::int64_t>& prompt);

  // Whether ``params`` have any.
  static bool needed_by(const SamplingParams& params);

  // Counts one output token.
  void add(std::int64_t token_id);

  // Changes ``logits`` in place, at the tokens seen so far, which all are places in it.
  void apply(float* logits) const;

 private:
  struct Seen {
    std::int64_t token_id;
    float count;  // occurrences in the output
  };

  Seen& seen(std::int64_t token_id);

  float repetition_, frequency_, presence_;
  std::vector<Seen> seen_;
  std::unordered_map<std::int64_t, std::size_t> places_;  // in ``seen_``, by token
};

}  // namespace skipdec::runtime
