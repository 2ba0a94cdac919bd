#include "sessions/onnxruntime/signature.h"

#include <algorithm>
#include <array>

#include "bundle/names.h"
#include "texts.h"

namespace skipdec::runtime::onnxruntime {
namespace {

struct Node {
  std::string name;
  int element_type = 0;
  std::vector<std::int64_t> shape;  // negative for a symbol
};

// API functions that describe a session's inputs, or its outputs.
struct Direction {
  const char* name;
  Function<const NativeSession*, std::size_t*> count;
  Function<const NativeSession*, std::size_t, Allocator*, char**> node_name;
  Function<const NativeSession*, std::size_t, TypeInfo**> node_type;
};

constexpr Direction kInputs{"inputs", kSessionGetInputCount, kSessionGetInputName,
                            kSessionGetInputTypeInfo};
constexpr Direction kOutputs{"outputs", kSessionGetOutputCount, kSessionGetOutputName,
                             kSessionGetOutputTypeInfo};

Node node_of(const Api& api, const NativeSession* session, const Direction& direction,
             std::size_t index) {
  Node node;
  Allocator* allocator = nullptr;  // ONNX Runtime's own, never freed
  char* name = nullptr;
  api.call(kGetAllocatorWithDefaultOptions, &allocator);
  api.call(direction.node_name, session, index, allocator, &name);
  node.name = name;
  api.call(kAllocatorFree, allocator, name);

  const auto type = api.make<TypeInfo>(direction.node_type, session, index);
  const TensorTypeAndShapeInfo* tensor = nullptr;  // belongs to ``type``
  api.call(kCastTypeInfoToTensorInfo, static_cast<const TypeInfo*>(type.get()), &tensor);
  if (tensor == nullptr) return node;
  std::size_t rank = 0;
  api.call(kGetTensorElementType, tensor, &node.element_type);
  api.call(kGetDimensionsCount, tensor, &rank);
  node.shape.resize(rank);
  api.call(kGetDimensions, tensor, node.shape.data(), rank);
  return node;
}

std::vector<Node> nodes_of(const Api& api, const NativeSession* session,
                           const Direction& direction) {
  std::size_t count = 0;
  api.call(direction.count, session, &count);
  std::vector<Node> nodes;
  nodes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(node_of(api, session, direction, i));
  return nodes;
}

template <class Tensors>
std::string names_of(const Tensors& tensors) {
  return joined(tensors, [](const auto& tensor) { return tensor.name; });
}

// Returns true if the shapes agree in all fixed dimensions; symbols match any size.
bool can_be(const std::vector<std::int64_t>& wanted, const std::vector<std::int64_t>& seen) {
  return std::equal(wanted.begin(), wanted.end(), seen.begin(), seen.end(),
                    [](std::int64_t first, std::int64_t second) {
                      return first == second || first < 0 || second < 0;
                    });
}

void compare(const Node& node, const TensorSpec& tensor, std::vector<std::string>& problems) {
  const std::string name(name_of(tensor.dtype));
  if (node.element_type != element_type(tensor.dtype))
    problems.push_back(node.name + " is of ONNX's type " + std::to_string(node.element_type) +
                       "; the manifest says " + name + ", which is " +
                       std::to_string(element_type(tensor.dtype)));
  if (!node.shape.empty() && !can_be(tensor.shape, node.shape))
    problems.push_back(node.name + " is " + text_of(node.shape) + "; the manifest says " +
                       text_of(tensor.shape));
}

void compare_all(const Api& api, const NativeSession* session, const Direction& direction,
                 const std::vector<TensorSpec>& tensors, std::vector<std::string>& problems) {
  const std::vector<Node> nodes = nodes_of(api, session, direction);
  std::vector<std::string> found;
  for (const Node& node : nodes) {
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const auto& each) { return each.name == node.name; });
    if (nodes.size() != tensors.size() || tensor == tensors.end()) {
      problems.push_back("has the " + std::string(direction.name) + " " + names_of(nodes) +
                         "; the manifest says " + names_of(tensors));
      return;
    }
    compare(node, *tensor, found);
  }
  problems.insert(problems.end(), found.begin(), found.end());
}

}  // namespace

int element_type(DType dtype) {
  constexpr std::array<int, 8> kNumbers{1, 10, 16, 7, 6, 2, 3, 9};  // in the order of DType
  return kNumbers[static_cast<std::size_t>(dtype)];
}

std::vector<std::string> signature_problems(const Api& api, const NativeSession* session,
                                            const EngineSpec& spec) {
  std::vector<std::string> problems;
  compare_all(api, session, kInputs, spec.inputs, problems);
  compare_all(api, session, kOutputs, spec.outputs, problems);
  return problems;
}

}  // namespace skipdec::runtime::onnxruntime
