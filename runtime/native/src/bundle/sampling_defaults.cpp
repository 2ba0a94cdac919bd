#include "bundle/sampling_defaults.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace skipdec::runtime {
namespace {

using nlohmann::json;

double number_of(Fields& fields, const char* name, double low, double high, double otherwise) {
  const json* found = fields.find(name);
  if (found == nullptr) return otherwise;
  const double number = found->is_number() ? found->get<double>() : low - 1;
  if (number < low || number > high)
    fields.refuse(name, "is " + shown(*found) + "; allowed: a number from " + shown(json(low)) +
                            " to " + shown(json(high)));
  return number;
}

}  // namespace

SamplingDefaults SamplingDefaults::of(const json& value, const Document& document) {
  Fields fields(value, "model.sampling_defaults", document);
  SamplingDefaults defaults;
  defaults.temperature = number_of(fields, "temperature", 0, 1e6, defaults.temperature);
  defaults.top_k = fields.optional_integer("top_k", -1, INT64_MAX).value_or(defaults.top_k);
  defaults.top_p = number_of(fields, "top_p", 0, 1, defaults.top_p);
  if (defaults.top_p == 0) fields.refuse("top_p", "is 0; allowed: a number above 0 and up to 1");
  defaults.min_p = number_of(fields, "min_p", 0, 1, defaults.min_p);
  defaults.repetition_penalty =
      number_of(fields, "repetition_penalty", 0.01, 100, defaults.repetition_penalty);
  return defaults;
}

}  // namespace skipdec::runtime
