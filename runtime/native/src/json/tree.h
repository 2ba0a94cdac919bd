// Builds a tree from JSON events.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "json/events.h"

namespace skipdec::runtime {

// Builds a nlohmann::json from events. Refuses duplicate keys.
class JsonTree final : public JsonEvents {
 public:
  JsonTree(std::string subject, JsonLimits limits);
  ~JsonTree() override;

  // Returns the tree after the last event.
  nlohmann::json take();

  void on_null() override;
  void on_boolean(bool value) override;
  void on_integer(std::int64_t value) override;
  void on_unsigned(std::uint64_t value) override;
  void on_number(double value) override;
  void on_string(std::string& value) override;
  void on_key(std::string& value) override;
  void on_object_start() override;
  void on_object_end() override;
  void on_array_start() override;
  void on_array_end() override;

 private:
  nlohmann::json& place();

  std::string subject_;
  JsonLimits limits_;
  std::unique_ptr<nlohmann::json> root_;
  std::vector<nlohmann::json*> open_;  // objects and arrays that enclose the next value
  nlohmann::json* member_ = nullptr;   // the value of the last key
};

}  // namespace skipdec::runtime
