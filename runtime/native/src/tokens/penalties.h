// Penalties for tokens seen before: repetition, frequency, presence.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tokens/sampling_params.h"

namespace skipdec::runtime {

// Counts the distinct tokens of prompt and output as the output grows.
class Penalties {
 public:
  // Only the repetition penalty uses ``prompt``.
  Penalties(const SamplingParams& params, const std::vector<std::int64_t>& prompt);

  // True if ``params`` set a penalty.
  static bool needed_by(const SamplingParams& params);

  // Counts one output token.
  void add(std::int64_t token_id);

  // Applies the penalties to ``logits`` [size] in place; ignores token ids beyond ``size``.
  void apply(float* logits, std::int64_t size) const;

 private:
  struct Seen {
    std::int64_t token_id;
    float count;  // occurrences in the output
  };

  Seen& seen(std::int64_t token_id);

  float repetition_, frequency_, presence_;
  std::vector<Seen> seen_;
  std::unordered_map<std::int64_t, std::size_t> places_;  // token -> index in ``seen_``
};

}  // namespace skipdec::runtime
