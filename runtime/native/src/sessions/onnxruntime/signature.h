// Whether a graph has the inputs and outputs that the manifest says of it.
#pragma once

#include <string>
#include <vector>

#include "bundle/manifest.h"
#include "sessions/onnxruntime/api.h"

namespace skipdec::runtime::onnxruntime {

// ONNX's number of a type.
int element_type(DType dtype);

// What the inputs and outputs of a loaded graph have other than ``spec`` says of them.
std::vector<std::string> signature_problems(const Api& api, const NativeSession* session,
                                            const EngineSpec& spec);

}  // namespace skipdec::runtime::onnxruntime
