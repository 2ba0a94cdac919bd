// Builds a tree from JSON events.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "json/events.h"

namespace skipdec::runtime {

// Builds a nlohmann::json from events. Refuses duplicate keys.
class JsonTree final : public JsonEvents {
 public:
  // ``document``, which errors name, must outlive this object.
  explicit JsonTree(const Document& document);
  ~JsonTree() override;

  // Returns the tree after the last event.
  nlohmann::json take();

  void on_scalar(const nlohmann::json& value) override;
  void on_string(std::string& value) override;
  void on_key(std::string& value) override;
  void on_start(bool is_object) override;
  void on_end(bool is_object) override;

 private:
  nlohmann::json& place();

  const Document& document_;
  std::unique_ptr<nlohmann::json> root_;
  std::vector<nlohmann::json*> open_;  // objects and arrays that enclose the next value
  nlohmann::json* member_ = nullptr;   // the value of the last key
};

// Parses untrusted JSON text in UTF-8, skipping a byte order mark. Throws an error of `document`
// for invalid JSON, a text that exceeds `limits`, integers of more than 64 bits, and duplicate
// keys.
nlohmann::json parse_json(std::string_view text, const Document& document,
                          const JsonLimits& limits = {});

}  // namespace skipdec::runtime
