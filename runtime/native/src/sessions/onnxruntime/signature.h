// Compares a graph's inputs and outputs with the manifest.
#pragma once

#include <string>
#include <vector>

#include "bundle/manifest.h"
#include "sessions/onnxruntime/api.h"

namespace skipdec::runtime::onnxruntime {

// Returns ONNX's enumerator for a type.
int element_type(DType dtype);

// Returns the differences between the inputs and outputs of a loaded graph and ``spec``.
std::vector<std::string> signature_problems(const Api& api, const NativeSession* session,
                                            const EngineSpec& spec);

}  // namespace skipdec::runtime::onnxruntime
