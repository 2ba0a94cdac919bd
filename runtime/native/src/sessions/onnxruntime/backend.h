// Runs engines on ONNX Runtime's CPU execution provider.
#pragma once

#include <memory>

#include "sessions/session.h"

namespace skipdec::runtime::onnxruntime {

// Throws like Backend::open.
std::shared_ptr<Backend> open_backend(const std::shared_ptr<const Bundle>& bundle,
                                      const runtime::SessionOptions& options);

}  // namespace skipdec::runtime::onnxruntime
