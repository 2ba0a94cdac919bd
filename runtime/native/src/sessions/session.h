// The interface for running one engine, independent of the library that runs it.
//
// An engine is loaded once and bound often: `bind` fixes the memory of every input and output, and
// `run` executes. The same memory may be input and output (KV caches, hidden states) and is then
// updated in place. The caller owns all memory, which must outlive the binding.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bundle/bundle.h"

namespace skipdec::runtime {

// Dense memory bound to a role in one engine's call.
struct BoundTensor {
  Role role;
  void* data;
  std::vector<std::int64_t> shape;
};

class Binding {
 public:
  virtual ~Binding() = default;  // not during run(): owners wait for the step to end
  Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  // Runs on the current contents of the bound memory without allocating. Throws Error (kEngine)
  // with the library's message.
  virtual void run() = 0;
};

class Session {
 public:
  virtual ~Session() = default;
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  virtual const EngineSpec& spec() const = 0;
  // Binds the tensors whose roles the engine has, and ignores others. The session must outlive the
  // binding. Throws Error (kInternal) if one of the engine's roles is missing or a fixed dimension
  // differs.
  virtual std::unique_ptr<Binding> bind(const std::vector<BoundTensor>& tensors) = 0;
};

enum class WeightsPlace { kMapped, kCopied };

struct SessionOptions {
  int threads = 0;  // size of the process-wide pool; 0: all available processors
  WeightsPlace weights = WeightsPlace::kMapped;
  std::string onnxruntime;  // path of libonnxruntime.so; empty: see onnxruntime/library.h
};

// Runs a bundle's engines. Any thread may use it; it must outlive its sessions.
class Backend {
 public:
  // Returns the backend for the bundle's target. If it cannot run here, throws Error (kEnvironment)
  // that says what is missing and how to get it.
  static std::shared_ptr<Backend> open(const std::shared_ptr<const Bundle>& bundle,
                                       const SessionOptions& options);

  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Throws Error (kBundle), with the library's message, if the graph cannot be loaded or differs
  // from the manifest.
  virtual std::unique_ptr<Session> load(const EngineSpec& spec) = 0;
  // Describes the backend, e.g. "ONNX Runtime 1.31.0, skipdec avx512vnni".
  virtual std::string description() const = 0;
};

}  // namespace skipdec::runtime
