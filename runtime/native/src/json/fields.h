// Reads members of a JSON object by name, type and bounds.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"
#include "json/shown.h"

namespace skipdec::runtime {

// Status, subject and remedy of the errors about a document.
struct Document {
  Status status = Status::kBundle;
  std::string subject;
  std::string remedy;

  // Throws Error (status): "subject | place: problem; remedy".
  [[noreturn]] void refuse(const std::string& place, const std::string& problem) const;
};

// Formats a range: "0 to 4096".
std::string range_text(std::int64_t low, std::int64_t high);

// Each function returns ``value``, which is at ``place``, e.g. "engines.3.shape". It throws an
// error of ``document`` for another type or a value out of bounds. References are valid as long as
// ``value``.
std::int64_t integer_of(const nlohmann::json& value, const std::string& place, std::int64_t low,
                        std::int64_t high, const Document& document);
const std::string& text_of(const nlohmann::json& value, const std::string& place,
                           const Document& document);
const nlohmann::json& array_of(const nlohmann::json& value, const std::string& place,
                               std::size_t most, const Document& document);

// Each method throws an error of ``document`` for a member that is missing or of the wrong type. A
// null member counts as absent, except that only absent members get a default. The value and
// ``document`` must outlive this object.
class Fields {
 public:
  Fields(const nlohmann::json& value, std::string place, const Document& document);

  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high);
  std::optional<std::int64_t> optional_integer(const char* name, std::int64_t low,
                                               std::int64_t high);
  const std::string& text(const char* name);
  std::optional<std::string> optional_text(const char* name);
  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high,
                       std::int64_t otherwise);
  std::string text(const char* name, const std::string& otherwise);
  bool boolean(const char* name, bool otherwise);
  const nlohmann::json& array(const char* name, std::size_t most);
  // Returns any value; nullptr if it is absent or null.
  const nlohmann::json* find(const char* name);
  // Returns any value, even null; nullptr if it is absent.
  const nlohmann::json* find_given(const char* name);
  const nlohmann::json& value(const char* name);
  // Allows a member that has no meaning to the caller.
  void ignore(const char* name);
  // Refuses members that no method has read.
  void require_no_others() const;

  std::string place_of(const char* name) const;
  [[noreturn]] void refuse(const char* name, const std::string& problem) const;

 private:
  const nlohmann::json& object_;
  std::string place_;
  const Document& document_;
  std::vector<std::string_view> asked_;
};

}  // namespace skipdec::runtime
