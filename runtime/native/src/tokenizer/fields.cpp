#include "tokenizer/fields.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "errors.h"
#include "tokenizer/parts.h"
#include "tokenizer/unsupported.h"

namespace skipdec::runtime {

using nlohmann::json;

TokenizerFields::TokenizerFields(const json& object, std::string subject, std::string path)
    : object_(object), subject_(std::move(subject)), path_(std::move(path)) {
  if (!object_.is_object()) refuse("is no JSON object");
}

bool TokenizerFields::has(const char* name) const {
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

const json& TokenizerFields::at(const char* name) const {
  const auto found = object_.find(name);
  if (found == object_.end()) wrong(name, "a value; it is missing");
  return *found;
}

const json& TokenizerFields::array(const char* name) const {
  if (!at(name).is_array()) wrong(name, "a list");
  return at(name);
}

const json& TokenizerFields::object(const char* name) const {
  if (!at(name).is_object()) wrong(name, "an object");
  return at(name);
}

std::string TokenizerFields::text(const char* name) const {
  if (!at(name).is_string()) wrong(name, "a string");
  return at(name).get<std::string>();
}

std::optional<std::string> TokenizerFields::optional_text(const char* name) const {
  return has(name) ? std::optional(text(name)) : std::nullopt;
}

bool TokenizerFields::boolean(const char* name) const {
  if (!at(name).is_boolean()) wrong(name, "true or false");
  return at(name).get<bool>();
}

bool TokenizerFields::boolean(const char* name, bool otherwise) const {
  return has(name) ? boolean(name) : otherwise;
}

std::uint32_t TokenizerFields::token_id(const json& value, const char* name) const {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMaxTokens)
    wrong(name, "a token id below 16777216");
  return value.get<std::uint32_t>();
}

TokenizerFields TokenizerFields::inside(const json& object, const std::string& name) const {
  return {object, subject_, path_.empty() ? name : path_ + "." + name};
}

void TokenizerFields::wrong(const char* name, const char* allowed) const {
  refuse("`" + std::string(name) + "` is wrong; allowed: " + allowed);
}

void TokenizerFields::refuse(const std::string& problem) const {
  throw Error(Status::kBundle, subject_,
              (path_.empty() ? problem : path_ + ": " + problem) + "; export the model again");
}

void TokenizerFields::unsupported(const std::string& problem) const {
  throw UnsupportedTokenizer(subject_, path_.empty() ? problem : path_ + ": " + problem);
}

}  // namespace skipdec::runtime
