#include "bundle/engine_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bundle/names.h"
#include "constants.h"
#include "files/sha256.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

constexpr std::size_t kMostWeights = 4096;  // files of one engine
constexpr std::size_t kMostTensors = 64;
constexpr std::size_t kMostDimensions = 8;
constexpr std::size_t kMostBuckets = 4096;
constexpr std::int64_t kMostStepBytes = INT64_MAX;

std::string nth(const std::string& place, std::size_t index) {
  return place + "." + std::to_string(index);
}

template <class Value, class Names>
Value named(std::optional<Value> value, Fields& fields, const char* name, const Names& allowed) {
  if (!value)
    fields.refuse(name, "is " + shown(fields.value(name)) + "; allowed: " + joined(allowed));
  return *value;
}

// Returns true if no part of a path is ".", ".." or empty, and no byte has a special meaning.
bool stays_inside(const std::string& path) {
  if (path.empty() || path.find_first_of(std::string("\\\0", 2)) != std::string::npos) return false;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

std::vector<std::int64_t> shape_of(const json& array, const std::string& place,
                                   const Document& document) {
  constexpr std::int64_t kMostSize = INT32_MAX;
  std::vector<std::int64_t> shape;
  for (const json& dimension : array)
    shape.push_back(dimension.is_string() ? kSymbol
                                          : integer_of(dimension, place, 1, kMostSize, document));
  return shape;
}

std::vector<TensorSpec> tensors_of(const json& array, const std::string& place,
                                   const Document& document) {
  std::vector<TensorSpec> tensors;
  for (const json& entry : array) {
    Fields fields(entry, nth(place, tensors.size()), document);
    TensorSpec& tensor = tensors.emplace_back();
    tensor.name = fields.text("name");
    tensor.role = named(role_called(fields.text("role")), fields, "role", constants::kTensorRoles);
    tensor.dtype =
        named(dtype_called(fields.text("dtype")), fields, "dtype", constants::kDataTypes);
    tensor.shape =
        shape_of(fields.array("shape", kMostDimensions), fields.place_of("shape"), document);
  }
  return tensors;
}

std::vector<KVBucket> buckets_of(const json& array, const std::string& place,
                                 const Document& document) {
  std::vector<KVBucket> buckets;
  for (const json& entry : array) {
    Fields fields(entry, nth(place, buckets.size()), document);
    KVBucket& bucket = buckets.emplace_back();
    bucket.capacity = fields.integer("capacity", 1, constants::kMaxTokens);
    bucket.graph = path_of(fields.value("graph"), fields.place_of("graph"), document);
  }
  return buckets;
}

const json& optional_array(Fields& fields, const char* name, std::size_t most,
                           const Document& document) {
  static const json none = json::array();
  const json* found = fields.find_given(name);
  return found == nullptr ? none : array_of(*found, fields.place_of(name), most, document);
}

}  // namespace

EngineEntry engine_of(const json& value, const std::string& place, const Document& document) {
  Fields fields(value, place, document);
  EngineEntry entry;
  EngineSpec& spec = entry.spec;
  spec.name = fields.text("name");
  spec.kind = named(kind_called(fields.text("kind")), fields, "kind", constants::kEngineKinds);
  entry.layer_index = fields.optional_integer("layer_index", 0, constants::kMaxLayers - 1);
  spec.graph = path_of(fields.value("graph"), fields.place_of("graph"), document);
  for (const json& path : optional_array(fields, "weights", kMostWeights, document))
    spec.weights.push_back(path_of(path, fields.place_of("weights"), document));
  spec.buckets = buckets_of(optional_array(fields, "buckets", kMostBuckets, document),
                            fields.place_of("buckets"), document);
  spec.inputs =
      tensors_of(fields.array("inputs", kMostTensors), fields.place_of("inputs"), document);
  spec.outputs =
      tensors_of(fields.array("outputs", kMostTensors), fields.place_of("outputs"), document);
  spec.step_bytes = fields.integer("step_bytes", 0, kMostStepBytes);
  return entry;
}

void require_engine(const EngineEntry& entry, const std::string& place, std::string_view name,
                    EngineKind kind, std::optional<std::int64_t> layer_index,
                    const Document& document) {
  if (entry.spec.name == name && entry.spec.kind == kind && entry.layer_index == layer_index)
    return;
  const auto described = [](std::string_view engine, EngineKind of_kind, const auto& index) {
    return std::string(engine) + ", a " + std::string(name_of(of_kind)) +
           (index ? " with layer_index " + std::to_string(*index) : " without layer_index");
  };
  document.refuse(place, "is engine " +
                             described(entry.spec.name, entry.spec.kind, entry.layer_index) +
                             "; expected: " + described(name, kind, layer_index));
}

EngineSpec named_engine_of(Fields& fields, const char* member, std::string_view name,
                           EngineKind kind, const Document& document) {
  const std::string place = fields.place_of(member);
  EngineEntry entry = engine_of(fields.value(member), place, document);
  require_engine(entry, place, name, kind, std::nullopt, document);
  return std::move(entry.spec);
}

const std::string& path_of(const json& value, const std::string& place, const Document& document) {
  const std::string& path = text_of(value, place, document);
  if (!stays_inside(path))
    document.refuse(
        place, "is " + shown(value) +
                   "; allowed: a path that stays in the bundle, without '..', '.', '//', '\\'");
  return path;
}

const std::string& sha256_of(const json& value, const std::string& place,
                             const Document& document) {
  const std::string& text = text_of(value, place, document);
  if (!is_sha256(text))
    document.refuse(place, "is " + shown(value) + "; allowed: 64 hexadecimal digits");
  return text;
}

}  // namespace skipdec::runtime
