#include "json/parse.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "json/events.h"
#include "json/tree.h"

namespace skipdec::runtime {

nlohmann::json parse_json(std::string_view text, const std::string& subject,
                          const JsonLimits& limits) {
  JsonTree tree(subject, limits);
  read_json(text, subject, limits, tree);
  return tree.take();
}

}  // namespace skipdec::runtime
