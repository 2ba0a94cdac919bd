// JSON as a stream of events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "json/limits.h"

namespace skipdec::runtime {

// Receives the contents of a JSON text in order. An exception from a method ends the reading.
class JsonEvents {
 public:
  JsonEvents() = default;
  JsonEvents(const JsonEvents&) = delete;
  JsonEvents& operator=(const JsonEvents&) = delete;
  virtual ~JsonEvents() = default;

  virtual void on_null() = 0;
  virtual void on_boolean(bool value) = 0;
  virtual void on_integer(std::int64_t value) = 0;
  // Receives integers from 0 on.
  virtual void on_unsigned(std::uint64_t value) = 0;
  virtual void on_number(double value) = 0;
  virtual void on_string(std::string& value) = 0;
  virtual void on_key(std::string& value) = 0;
  virtual void on_object_start() = 0;
  virtual void on_object_end() = 0;
  virtual void on_array_start() = 0;
  virtual void on_array_end() = 0;
};

// Reads UTF-8 text without recursion; strings are decoded and valid UTF-8. Throws
// Error(limits.status, subject, ...) for invalid JSON, for a number that fits neither int64, uint64
// nor double, and for a text beyond `limits`. `events` has to handle duplicate keys.
void read_json(std::string_view text, const std::string& subject, const JsonLimits& limits,
               JsonEvents& events);

}  // namespace skipdec::runtime
