#include "json/tree.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace skipdec::runtime {

using nlohmann::json;

JsonTree::JsonTree(std::string subject, JsonLimits limits)
    : subject_(std::move(subject)), limits_(std::move(limits)), root_(std::make_unique<json>()) {}

JsonTree::~JsonTree() = default;

json JsonTree::take() { return std::move(*root_); }

json& JsonTree::place() {
  if (open_.empty()) return *root_;
  json& around = *open_.back();
  return around.is_array() ? around.emplace_back() : *member_;
}

void JsonTree::on_null() { place() = nullptr; }
void JsonTree::on_boolean(bool value) { place() = value; }
void JsonTree::on_integer(std::int64_t value) { place() = value; }
void JsonTree::on_unsigned(std::uint64_t value) { place() = value; }
void JsonTree::on_number(double value) { place() = value; }
void JsonTree::on_string(std::string& value) { place() = std::move(value); }

void JsonTree::on_key(std::string& value) {
  auto& members = open_.back()->get_ref<json::object_t&>();
  const auto [entry, added] = members.try_emplace(std::move(value));
  if (!added) {
    const std::string remedy = limits_.remedy.empty() ? "" : "; " + limits_.remedy;
    // NOLINTNEXTLINE(bugprone-use-after-move): moved from only if it was added
    throw Error(limits_.status, subject_, "has a key twice in one object: " + value + remedy);
  }
  member_ = &entry->second;
}

void JsonTree::on_object_start() {
  json& object = place();
  object = json::object();
  open_.push_back(&object);
}

void JsonTree::on_object_end() { open_.pop_back(); }

void JsonTree::on_array_start() {
  json& array = place();
  array = json::array();
  open_.push_back(&array);
}

void JsonTree::on_array_end() { open_.pop_back(); }

}  // namespace skipdec::runtime
