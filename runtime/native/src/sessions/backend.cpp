#include "sessions/onnxruntime/backend.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "errors.h"
#include "sessions/session.h"

namespace skipdec::runtime {
namespace {

using Open = std::shared_ptr<Backend> (*)(const std::shared_ptr<const Bundle>&,
                                          const SessionOptions&);

std::shared_ptr<Backend> refuse_tensorrt(const std::shared_ptr<const Bundle>& bundle,
                                         const SessionOptions&) {
  throw Error(Status::kEnvironment, bundle->path(),
              "has TensorRT's plans, which this library can't run; run it by skipdec's Python "
              "runtime, or export the model again with --target onnxruntime");
}

struct Target {
  std::string_view name;
  Open open;
};

constexpr std::array<Target, 3> kTargets{{{"onnxruntime", onnxruntime::open_backend},
                                          {"tensorrt", refuse_tensorrt},
                                          {"tensorrt-rtx", refuse_tensorrt}}};

}  // namespace

std::shared_ptr<Backend> Backend::open(const std::shared_ptr<const Bundle>& bundle,
                                       const SessionOptions& options) {
  const std::string& wanted = bundle->manifest().target;
  const auto* found = std::find_if(kTargets.begin(), kTargets.end(),
                                   [&](const Target& target) { return target.name == wanted; });
  if (found == kTargets.end())
    throw Error(Status::kBundle, bundle->path(),
                "is for the target " + wanted + "; allowed: onnxruntime");
  return found->open(bundle, options);
}

}  // namespace skipdec::runtime
