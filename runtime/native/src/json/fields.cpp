#include "json/fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "texts.h"

namespace skipdec::runtime {

using nlohmann::json;

void Document::refuse(const std::string& place, const std::string& problem) const {
  const std::string text = place.empty() ? problem : place + ": " + problem;
  throw Error(status, subject, remedy.empty() ? text : text + "; " + remedy);
}

std::string range_text(std::int64_t low, std::int64_t high) {
  return std::to_string(low) + " to " + std::to_string(high);
}

std::int64_t integer_of(const json& value, const std::string& place, std::int64_t low,
                        std::int64_t high, const Document& document) {
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= INT64_MAX
                                               : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high)
    document.refuse(place, "is " + shown(value) + "; allowed: " + range_text(low, high));
  return value.get<std::int64_t>();
}

const std::string& text_of(const json& value, const std::string& place, const Document& document) {
  if (!value.is_string()) document.refuse(place, "is " + shown(value) + "; allowed: a text");
  return value.get_ref<const std::string&>();
}

const json& array_of(const json& value, const std::string& place, std::size_t most,
                     const Document& document) {
  if (!value.is_array()) document.refuse(place, "is " + shown(value) + "; allowed: an array");
  if (value.size() > most)
    document.refuse(place, "has " + std::to_string(value.size()) +
                               " entries; allowed: " + std::to_string(most) + " or fewer");
  return value;  // NOLINT(bugprone-return-const-ref-from-parameter): as the header says
}

Fields::Fields(const json& value, std::string place, const Document& document)
    : object_(value), place_(std::move(place)), document_(document) {
  if (!value.is_object()) document.refuse(place_, "is " + shown(value) + "; allowed: an object");
}

const json* Fields::find(const char* name) {
  const json* found = find_given(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const json* Fields::find_given(const char* name) {
  ignore(name);
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

std::int64_t Fields::integer(const char* name, std::int64_t low, std::int64_t high,
                             std::int64_t otherwise) {
  const json* found = find_given(name);
  return found == nullptr ? otherwise : integer_of(*found, place_of(name), low, high, document_);
}

std::string Fields::text(const char* name, const std::string& otherwise) {
  const json* found = find_given(name);
  return found == nullptr ? otherwise : text_of(*found, place_of(name), document_);
}

const json& Fields::value(const char* name) {
  const json* found = find(name);
  if (found == nullptr) refuse(name, "is missing");
  return *found;
}

std::int64_t Fields::integer(const char* name, std::int64_t low, std::int64_t high) {
  return integer_of(value(name), place_of(name), low, high, document_);
}

std::optional<std::int64_t> Fields::optional_integer(const char* name, std::int64_t low,
                                                     std::int64_t high) {
  const json* found = find(name);
  if (found == nullptr) return std::nullopt;
  return integer_of(*found, place_of(name), low, high, document_);
}

const std::string& Fields::text(const char* name) {
  return text_of(value(name), place_of(name), document_);
}

std::optional<std::string> Fields::optional_text(const char* name) {
  const json* found = find(name);
  if (found == nullptr) return std::nullopt;
  return text_of(*found, place_of(name), document_);
}

bool Fields::boolean(const char* name, bool otherwise) {
  const json* found = find_given(name);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) refuse(name, "is " + shown(*found) + "; allowed: true, false");
  return found->get<bool>();
}

const json& Fields::array(const char* name, std::size_t most) {
  return array_of(value(name), place_of(name), most, document_);
}

void Fields::ignore(const char* name) {
  if (std::find(asked_.begin(), asked_.end(), name) == asked_.end()) asked_.emplace_back(name);
}

void Fields::require_no_others() const {
  for (const auto& member : object_.items())
    if (std::find(asked_.begin(), asked_.end(), member.key()) == asked_.end())
      refuse(member.key().c_str(), "is unknown; allowed: " + joined(asked_));
}

std::string Fields::place_of(const char* name) const {
  return place_.empty() ? name : place_ + "." + name;
}

void Fields::refuse(const char* name, const std::string& problem) const {
  document_.refuse(place_of(name), problem);
}

}  // namespace skipdec::runtime
