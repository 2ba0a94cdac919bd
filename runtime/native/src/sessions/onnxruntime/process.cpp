#include "sessions/onnxruntime/process.h"

#include <unistd.h>

#include <mutex>
#include <string>

#include "errors.h"
#include "host/control_groups.h"

namespace skipdec::runtime::onnxruntime {
namespace {

constexpr int kArenaAllocator = 1;  // OrtArenaAllocator

Owned<Environment> made_environment(const Api& api, int threads) {
  const auto options = api.make<ThreadingOptions>(kCreateThreadingOptions);
  api.call(kSetGlobalIntraOpNumThreads, options.get(), threads);
  api.call(kSetGlobalInterOpNumThreads, options.get(), 1);
  return api.make<Environment>(kCreateEnvWithGlobalThreadPools, kErrorsOnly, "skipdec",
                               options.get());
}

// Makes all engines share one arena, so that each reuses the activation memory of the previous one.
void share_arena(const Api& api, Environment* environment) {
  const auto memory = api.make<MemoryInfo>(kCreateCpuMemoryInfo, kArenaAllocator, kDefaultMemory);
  const auto defaults = api.make<ArenaConfiguration>(kCreateArenaCfg, std::size_t{0}, -1, -1, -1);
  // If other code has already created the process's environment, ONNX Runtime returns that one.
  api.succeeds(kCreateAndRegisterAllocator, environment, memory.get(), defaults.get());
}

void check_threads(int threads) {
  const int most = usable_processors();
  if (threads < 0 || threads > most)
    throw Error(Status::kUsage, "threads",
                "is " + std::to_string(threads) + "; allowed: 1 to " + std::to_string(most) +
                    ", the processors that this process may use, or 0 for all of them");
}

}  // namespace

SharedProcess::SharedProcess(const Library& library, int threads)
    : library_(library),
      threads_(threads),
      process_(getpid()),
      environment_(made_environment(library.api, threads)) {
  share_arena(library.api, environment_.get());
}

std::shared_ptr<const SharedProcess> SharedProcess::get(const Library& library, int threads) {
  static std::mutex mutex;  // locked while one is created or freed, so that two never coexist
  static std::weak_ptr<const SharedProcess> current;
  check_threads(threads);
  std::shared_ptr<const SharedProcess> found;  // the last reference is freed after unlocking
  const std::scoped_lock lock(mutex);
  found = current.lock();
  if (found != nullptr && found->process_ != getpid())
    throw Error(Status::kUsage, "engine",
                "can't be opened in this process, a fork of " + std::to_string(found->process_) +
                    ", whose threads of ONNX Runtime don't survive one; fork while no engine is "
                    "open, or start the child by exec");
  if (found != nullptr && threads != 0 && threads != found->threads_)
    throw Error(Status::kUsage, "threads",
                "is " + std::to_string(threads) + ", but this process shares a pool of " +
                    std::to_string(found->threads_) + "; leave it out or use the same number");
  if (found != nullptr) return found;
  try {
    const auto release = [](const SharedProcess* process) {
      const std::scoped_lock freeing(mutex);
      const std::unique_ptr<const SharedProcess> freed(process);
    };
    const int count = threads == 0 ? usable_processors() : threads;
    found = {std::make_unique<const SharedProcess>(library, count).release(), release};
    current = found;
    return found;
  } catch (const Refusal& error) {
    throw Error(Status::kEnvironment, "ONNX Runtime " + library.version,
                std::string("refused a shared pool of threads (") + error.what() + ")");
  }
}

}  // namespace skipdec::runtime::onnxruntime
