// Threads and activation memory, which all ONNX Runtime sessions of this process share.
#pragma once

#include <sys/types.h>

#include <memory>

#include "sessions/onnxruntime/library.h"

namespace skipdec::runtime::onnxruntime {

// A thread pool and an arena, which a forked child cannot use. They are freed with the last engine
// that holds them; the next engine may choose another number of threads.
class SharedProcess {
 public:
  // Used by `get`. Throws Refusal.
  SharedProcess(const Library& library, int threads);

  // With ``threads`` 0, uses the existing pool, or one thread per available processor. Throws Error
  // (kUsage) for more threads than processors, for a number other than that of the open engines,
  // and in a fork of the process that created the pool. Throws Error (kEnvironment) if ONNX Runtime
  // refuses.
  static std::shared_ptr<const SharedProcess> get(const Library& library, int threads);

  const Library& library() const { return library_; }
  const Environment* environment() const { return environment_.get(); }
  int threads() const { return threads_; }

 private:
  const Library& library_;
  int threads_;
  pid_t process_;
  Owned<Environment> environment_;
};

}  // namespace skipdec::runtime::onnxruntime
