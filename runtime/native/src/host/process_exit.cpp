#include "host/process_exit.h"

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "errors.h"

namespace skipdec::runtime {
namespace {

std::atomic<int> running{0};  // blocks of native work
std::atomic<bool> is_exiting{false};

#ifdef __GLIBC__
constexpr std::chrono::milliseconds kPatience{10'000}, kPause{1};

void await_native_work() {
  is_exiting = true;
  for (auto waited = kPause; running > 0 && waited < kPatience; waited += kPause)
    std::this_thread::sleep_for(kPause);
}

void end(int status, void* registered_by) {
  if (getpid() == *static_cast<const pid_t*>(registered_by)) {
    await_native_work();
    return;
  }
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  _exit(status);
}

// Keeps this library loaded, because the handler runs at exit even if the program closed the
// library.
void stay_loaded() {
  Dl_info about{};
  const auto* here = reinterpret_cast<const void*>(&end);
  if (dladdr(here, &about) != 0 && about.dli_fname != nullptr)
    dlopen(about.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}
#endif

}  // namespace

NativeWork::NativeWork() {
  ++running;
  if (!is_exiting) return;
  --running;
  throw Error(Status::kClosed, "engine", "is closed: the process exits");
}

NativeWork::~NativeWork() { --running; }

void prepare_exit() {
#ifdef __GLIBC__
  static pid_t registered_by = getpid();
  static const bool is_registered = [] {
    stay_loaded();
    return on_exit(end, &registered_by) == 0;
  }();
  static_cast<void>(is_registered);
#endif
}

}  // namespace skipdec::runtime
