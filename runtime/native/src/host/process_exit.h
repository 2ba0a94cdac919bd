// Ends a process whose threads run engines.
#pragma once

namespace skipdec::runtime {

// Work on engines, for which exit() waits up to 10 seconds, because it ends static objects of ONNX
// Runtime that the work needs. Once it has begun, the constructor throws Error (kClosed).
class NativeWork {
 public:
  NativeWork();
  ~NativeWork();
  NativeWork(const NativeWork&) = delete;
  NativeWork& operator=(const NativeWork&) = delete;
};

// From now on, exit() waits for `NativeWork` before it reaches existing handlers and static
// objects. In a forked child, it flushes the standard streams and ends the process instead, because
// ONNX Runtime's static objects would wait for threads that do not exist there. Call it once an
// engine is loaded, when the static objects exist; further calls do nothing.
void prepare_exit();

}  // namespace skipdec::runtime
