#include <initializer_list>

#include "errors.h"
#include "fuzzing.h"
#include "schedule/schedules.h"
#include "sealed.h"

namespace {

using skipdec::runtime::Error;
using skipdec::runtime::Schedules;

constexpr std::int64_t kLayers = 4;  // of the bundles in the corpus

// Resolves the schedule of a request and reads its plans.
void resolve(const Schedules& schedules, std::string_view name) {
  if (name.find(".json") != name.npos) return;  // a file of this name would be read
  try {
    const auto schedule = schedules.resolve(name, 16);
    for (const std::int64_t index : {0, 1, 63, 1 << 30}) schedule->plan(index);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) schedule->prompt_prefix(layer, 64);
    schedule->active_lengths(1 << 20, 1 << 20);
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int fuzz_schedule(const std::uint8_t* data, std::size_t size) {
  const std::string_view given{reinterpret_cast<const char*>(data), size};
  try {
    const std::string text = skipdec::fuzzing::sealed(std::string(given));
    const Schedules schedules = Schedules::parse(text, kLayers, "schedule.json");
    for (const std::string_view name : {"", "2x", "full:horizon=9", "4x"}) resolve(schedules, name);
    resolve(schedules, text);
    resolve(schedules, given.substr(0, 64));
  } catch (const Error&) {
  }
  return 0;
}
