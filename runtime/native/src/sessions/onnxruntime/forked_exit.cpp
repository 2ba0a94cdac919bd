#include "sessions/onnxruntime/forked_exit.h"

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace skipdec::runtime::onnxruntime {
namespace {

#ifdef __GLIBC__
void end_if_forked(int status, void* registered_by) {
  if (getpid() == *static_cast<const pid_t*>(registered_by)) return;
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  _exit(status);
}

// Keeps this library loaded, because the handler runs at exit even if the program closed the
// library.
void stay_loaded() {
  Dl_info about{};
  const auto* here = reinterpret_cast<const void*>(&end_if_forked);
  if (dladdr(here, &about) != 0 && about.dli_fname != nullptr)
    dlopen(about.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}
#endif

}  // namespace

void end_forked_children_early() {
#ifdef __GLIBC__
  static pid_t registered_by = getpid();
  static const bool is_registered = [] {
    stay_loaded();
    return on_exit(end_if_forked, &registered_by) == 0;
  }();
  static_cast<void>(is_registered);
#endif
}

}  // namespace skipdec::runtime::onnxruntime
