// TokenizerFields of a JSON object, checked.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace skipdec::runtime {

// Reads fields of one object of a tokenizer.json. All throw Error (kBundle) for a value of another
// type, naming it by `path`.
class TokenizerFields {
 public:
  TokenizerFields(const nlohmann::json& object, std::string subject, std::string path);

  bool has(const char* name) const;  // and it is not null
  const nlohmann::json& array(const char* name) const;
  const nlohmann::json& object(const char* name) const;
  std::string text(const char* name) const;
  std::optional<std::string> optional_text(const char* name) const;
  bool boolean(const char* name) const;
  bool boolean(const char* name, bool otherwise) const;

  // The value of a field, an element or such as a token's id.
  std::uint32_t token_id(const nlohmann::json& value, const char* name) const;

  // The same for an object inside.
  TokenizerFields inside(const nlohmann::json& object, const std::string& name) const;

  [[noreturn]] void refuse(const std::string& problem) const;
  [[noreturn]] void unsupported(const std::string& problem) const;

 private:
  const nlohmann::json& at(const char* name) const;
  [[noreturn]] void wrong(const char* name, const char* allowed) const;

  const nlohmann::json& object_;
  std::string subject_, path_;
};

}  // namespace skipdec::runtime
