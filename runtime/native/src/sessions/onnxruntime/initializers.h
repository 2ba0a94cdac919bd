// Finds the initialisers of an ONNX graph that are stored in other files, without protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skipdec::runtime::onnxruntime {

// An initialiser whose bytes are in a file beside the graph.
struct ExternalTensor {
  std::string name;
  int element_type = 0;  // ONNX's enumerator
  std::vector<std::int64_t> shape;
  std::string file;                    // relative to the graph's folder
  std::uint64_t offset = 0, size = 0;  // in bytes
};

// Throws std::invalid_argument if the bytes are not a serialised ONNX model, or if its weights have
// a type or size that bundles don't have.
std::vector<ExternalTensor> external_tensors(std::string_view graph);

}  // namespace skipdec::runtime::onnxruntime
