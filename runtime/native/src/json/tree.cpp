#include "json/tree.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace skipdec::runtime {

using nlohmann::json;

JsonTree::JsonTree(const Document& document)
    : document_(document), root_(std::make_unique<json>()) {}

JsonTree::~JsonTree() = default;

json JsonTree::take() { return std::move(*root_); }

json& JsonTree::place() {
  if (open_.empty()) return *root_;
  json& around = *open_.back();
  return around.is_array() ? around.emplace_back() : *member_;
}

void JsonTree::on_scalar(const json& value) { place() = value; }
void JsonTree::on_string(std::string& value) { place() = std::move(value); }

void JsonTree::on_key(std::string& value) {
  auto& members = open_.back()->get_ref<json::object_t&>();
  const auto [entry, added] = members.try_emplace(std::move(value));
  // NOLINTNEXTLINE(bugprone-use-after-move): moved from only if it was added
  if (!added) document_.refuse("", "has a key twice in one object: " + value);
  member_ = &entry->second;
}

void JsonTree::on_start(bool is_object) {
  json& around = place();
  around = is_object ? json::object() : json::array();
  open_.push_back(&around);
}

void JsonTree::on_end(bool /*is_object*/) { open_.pop_back(); }

json parse_json(std::string_view text, const Document& document, const JsonLimits& limits) {
  JsonTree tree(document);
  read_json(text, document, limits, tree);
  return tree.take();
}

}  // namespace skipdec::runtime
