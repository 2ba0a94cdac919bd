// What all ONNX Runtime sessions of this process share: threads, and memory for activations.
#pragma once

#include <sys/types.h>

#include <memory>

#include "sessions/onnxruntime/library.h"

namespace skipdec::runtime::onnxruntime {

// One pool of threads and one arena, which a forked child can't use. Freed with the last engine
// that holds it; the next one may choose another number of threads.
class SharedProcess {
 public:
  // For `get`. Throws Refusal.
  SharedProcess(const Library& library, int threads);

  // ``threads`` 0: as many as there are, or the processors that this process may use.
  // Throws Error (kUsage) for more threads than processors, or for another number than the engines
  // have that are open, or in a fork of the process that made the pool, and Error (kEnvironment)
  // if ONNX Runtime refuses.
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
