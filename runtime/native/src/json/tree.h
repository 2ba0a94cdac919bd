// JSON events as a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "json/events.h"

namespace skipdec::runtime {

// Builds a nlohmann::json of events. A key that its object has already is refused.
class JsonTree final : public JsonEvents {
 public:
  JsonTree(std::string subject, JsonLimits limits);
  ~JsonTree() override;

  // The tree, once all events have come.
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
  std::vector<nlohmann::json*> open_;  // objects and arrays around the next value
  nlohmann::json* member_ = nullptr;   // the value of the key that came last
};

}  // namespace skipdec::runtime
