#include "scheduling/admission.h"

#include <algorithm>
#include <set>
#include <string>

#include "errors.h"
#include "json/shown.h"
#include "texts.h"

namespace skipdec::runtime {

namespace {

void read_parameter(std::string_view item, bool is_gang, Admission& admission,
                    std::set<std::string_view>& given) {
  const std::size_t equals = std::min(item.find('='), item.size());
  const std::string_view name = item.substr(0, equals);
  const auto number = number_in(item.substr(std::min(equals + 1, item.size())));
  if (is_gang && number && name == "min_free") {
    admission.min_free = *number;
  } else if (is_gang && number && name == "hold_ms") {
    admission.hold_ms = *number;
  } else {
    throw Error(Status::kUsage, "admission",
                shown_text(item) + " is not allowed; " +
                    (is_gang ? "gang takes min_free=N, hold_ms=N, with N up to 999999999"
                             : "fcfs takes no parameter"));
  }
  if (!given.insert(name).second) {
    throw Error(Status::kUsage, "admission", std::string(name) + " is given twice; give it once");
  }
}

}  // namespace

Admission Admission::parse(std::string_view text) {
  if (text.empty()) text = "fcfs";
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = text.substr(0, colon);
  const bool is_gang = name == "gang";
  if (!is_gang && name != "fcfs") {
    throw Error(Status::kUsage, "admission", shown_text(name) + " is unknown; allowed: fcfs, gang");
  }
  Admission admission = is_gang ? Admission{2, 8} : Admission{};
  std::string_view rest = text.substr(std::min(colon + 1, text.size()));
  std::set<std::string_view> given;  // names of parameters
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    if (comma > 0) read_parameter(rest.substr(0, comma), is_gang, admission, given);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return admission;
}

bool Admission::holds(std::int64_t waiting, std::int64_t free, std::int64_t running, double since,
                      double now) const {
  const bool is_early = now < since + static_cast<double>(hold_ms) / 1000;
  return running > 0 && std::min(free, waiting) < min_free && is_early;
}

}  // namespace skipdec::runtime
