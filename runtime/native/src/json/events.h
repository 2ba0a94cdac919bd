// JSON as a stream of events.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "json/fields.h"
#include "json/limits.h"

namespace skipdec::runtime {

// Receives the contents of a JSON text in order. An exception from a method ends the reading.
class JsonEvents {
 public:
  JsonEvents() = default;
  JsonEvents(const JsonEvents&) = delete;
  JsonEvents& operator=(const JsonEvents&) = delete;
  virtual ~JsonEvents() = default;

  // Receives a scalar that is not a string; integers from 0 on are unsigned.
  virtual void on_scalar(const nlohmann::json& value) = 0;
  virtual void on_string(std::string& value) = 0;
  virtual void on_key(std::string& value) = 0;
  virtual void on_start(bool is_object) = 0;  // otherwise an array
  virtual void on_end(bool is_object) = 0;
};

// Reads UTF-8 text without recursion; strings are decoded and valid UTF-8. Throws an error of
// `document` for invalid JSON, for a number that fits neither int64, uint64 nor double, and for a
// text that exceeds `limits`. `events` must handle duplicate keys.
void read_json(std::string_view text, const Document& document, const JsonLimits& limits,
               JsonEvents& events);

}  // namespace skipdec::runtime
