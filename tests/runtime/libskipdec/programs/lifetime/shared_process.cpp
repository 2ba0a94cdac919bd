// shared_process BUNDLE: engines share a process with another user of ONNX Runtime, then with each
// other; prints one line about each outcome.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "errors.h"
#include "sessions/onnxruntime/library.h"
#include "sessions/session.h"

namespace {

using namespace skipdec::runtime;

constexpr onnxruntime::Function<int, const char*, onnxruntime::Environment**> kCreateEnv{3};
constexpr int kErrorsOnly = 3;

std::shared_ptr<Backend> opened(const std::shared_ptr<const Bundle>& bundle, int threads) {
  SessionOptions options;
  options.threads = threads;
  std::shared_ptr<Backend> backend = Backend::open(bundle, options);
  backend->load(bundle->manifest().embed);
  return backend;
}

template <class Call>
void report(const std::string& name, const Call& call) {
  try {
    call();
    std::printf("%s: fine\n", name.c_str());
  } catch (const Error& error) {
    std::printf("%s: status %d, %s\n", name.c_str(), static_cast<int>(error.status()),
                error.what());
  }
}

void run(const char* path) {
  const auto bundle = Bundle::open(path, Verify::kGraphs);
  const onnxruntime::Library& library = onnxruntime::load_library("");
  auto others =
      library.api.make<onnxruntime::Environment>(kCreateEnv, kErrorsOnly, "somebody else");
  report("beside another's environment", [&] { opened(bundle, 0); });
  others.reset();
  {
    const auto first = opened(bundle, 1);
    report("with as many threads", [&] { opened(bundle, 1); });
    report("with any threads", [&] { opened(bundle, 0); });
    report("with other threads", [&] { opened(bundle, 2); });
    report("with too many threads", [&] { opened(bundle, 1 << 20); });
    report("with another library",
           [&] { onnxruntime::load_library("/nowhere/libonnxruntime.so"); });
  }
  report("after the first closed", [&] { opened(bundle, 0); });
}

}  // namespace

int main(int, char** words) {
  try {
    run(words[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
