// Conversion of skipdec_params to SamplingParams.
#include <algorithm>
#include <cmath>

#include "abi/guard.h"
#include "abi/handles.h"

namespace skipdec::runtime {

namespace {

constexpr std::int64_t kUnset = INT64_MIN;  // for top_k; NaN for the numbers beside it
constexpr std::int64_t kNoLogprobs = -1;

double or_default(double given, double otherwise) { return std::isnan(given) ? otherwise : given; }

// Throws Error (kUsage) for a count without an array, or one above every vocabulary.
template <class Element>
void require_array(const Element* array, std::size_t count, const char* name) {
  constexpr std::size_t kMost = std::size_t{1} << 24;  // tokens of a vocabulary
  if (count > kMost) {
    throw Error(Status::kUsage, name,
                "has " + std::to_string(count) + " entries; allowed: " + std::to_string(kMost));
  }
  if (count > 0) required(array, name);
}

}  // namespace

SamplingParams sampling_params(const skipdec_params& given, const SamplingDefaults& defaults) {
  SamplingParams params;
  params.max_tokens = given.max_tokens;
  params.temperature = or_default(given.temperature, defaults.temperature);
  params.top_k = given.top_k == kUnset ? defaults.top_k : given.top_k;
  params.top_p = or_default(given.top_p, defaults.top_p);
  params.min_p = or_default(given.min_p, defaults.min_p);
  params.repetition_penalty = or_default(given.repetition_penalty, defaults.repetition_penalty);
  params.presence_penalty = given.presence_penalty;
  params.frequency_penalty = given.frequency_penalty;
  if (given.has_seed != 0) params.seed = given.seed;
  params.n = given.n;
  params.min_tokens = given.min_tokens;
  require_array(given.stop, given.num_stop, "stop");
  for (std::size_t index = 0; index < given.num_stop; ++index) {
    params.stop.emplace_back(required(given.stop[index], "stop"));
  }
  require_array(given.stop_token_ids, given.num_stop_token_ids, "stop_token_ids");
  params.stop_token_ids.assign(given.stop_token_ids,
                               given.stop_token_ids + given.num_stop_token_ids);
  params.ignore_eos = given.ignore_eos != 0;
  params.include_stop_str_in_output = given.include_stop_str_in_output != 0;
  params.skip_special_tokens = given.skip_special_tokens != 0;
  if (given.logprobs != kNoLogprobs) params.logprobs = given.logprobs;
  return params;
}

const skipdec_params& default_params() {
  static const skipdec_params standard = [] {
    const SamplingParams defaults;
    skipdec_params params{};
    params.size = sizeof params;
    params.max_tokens = defaults.max_tokens;
    params.temperature = params.top_p = params.min_p = params.repetition_penalty = std::nan("");
    params.top_k = kUnset;
    params.presence_penalty = defaults.presence_penalty;
    params.frequency_penalty = defaults.frequency_penalty;
    params.n = defaults.n;
    params.min_tokens = defaults.min_tokens;
    params.skip_special_tokens = defaults.skip_special_tokens ? 1 : 0;
    params.logprobs = kNoLogprobs;
    return params;
  }();
  return standard;
}

}  // namespace skipdec::runtime

void skipdec_params_init(skipdec_params* params, size_t size) {
  if (params == nullptr) return;
  std::memcpy(params, &skipdec::runtime::default_params(), std::min(size, sizeof *params));
  params->size = size;
}
