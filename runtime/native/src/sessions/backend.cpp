#include "sessions/onnxruntime/backend.h"

#include "errors.h"
#include "sessions/session.h"

namespace skipdec::runtime {

std::shared_ptr<Backend> Backend::open(const std::shared_ptr<const Bundle>& bundle,
                                       const SessionOptions& options) {
  const std::string& target = bundle->manifest().target;
  if (target == "onnxruntime") return onnxruntime::open_backend(bundle, options);
  if (target == "tensorrt" || target == "tensorrt-rtx")
    throw Error(Status::kEnvironment, bundle->path(),
                "has TensorRT's plans, which this library can't run; run it by skipdec's Python "
                "runtime, or export the model again with --target onnxruntime");
  throw Error(Status::kBundle, bundle->path(),
              "is for the target " + target + "; allowed: onnxruntime");
}

}  // namespace skipdec::runtime
