#include <nlohmann/json.hpp>
#include <string_view>

#include "fuzzing.h"
#include "json/tree.h"

extern "C" int fuzz_json(const std::uint8_t* data, std::size_t size) {
  try {
    skipdec::runtime::parse_json({reinterpret_cast<const char*>(data), size},
                                 {skipdec::runtime::Status::kBundle, "fuzz.json", ""});
  } catch (const skipdec::runtime::Error&) {
  }
  return 0;
}
