// How one engine runs, whatever library runs it.
//
// An engine is loaded once and bound often: `bind` fixes the memory of every input and output,
// `run` executes. The same memory may be input and output (KV caches, hidden states): it is updated
// in place. The caller owns all memory, which outlives the binding.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bundle/bundle.h"

namespace skipdec::runtime {

// Dense memory that plays a role in one engine's call.
struct BoundTensor {
  Role role;
  void* data;
  std::vector<std::int64_t> shape;
};

class Binding {
 public:
  virtual ~Binding() = default;  // never while it runs: owners let steps end first
  Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  // Executes on the bound memory as it is now. Throws Error (kEngine) with the library's words.
  // Allocates nothing of its own.
  virtual void run() = 0;
};

class Session {
 public:
  virtual ~Session() = default;
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  virtual const EngineSpec& spec() const = 0;
  // Binds those of ``tensors`` whose roles the engine has; the others are left out. The session
  // outlives the binding. Throws Error (kInternal) if one of the engine's roles is missing or a
  // fixed dimension differs.
  virtual std::unique_ptr<Binding> bind(const std::vector<BoundTensor>& tensors) = 0;
};

enum class WeightsPlace { kMapped, kCopied };

struct SessionOptions {
  int threads = 0;  // of the process-wide pool; 0: all processors that this process may use
  WeightsPlace weights = WeightsPlace::kMapped;
  std::string onnxruntime;  // path of libonnxruntime.so; empty: searched for, see onnxruntime.h
};

// What runs a bundle's engines. Any thread; sessions don't outlive it.
class Backend {
 public:
  // The backend for the bundle's target. Throws Error (kEnvironment) where it can't run here, with
  // what is missing and how to get it.
  static std::shared_ptr<Backend> open(const std::shared_ptr<const Bundle>& bundle,
                                       const SessionOptions& options);

  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Throws Error (kBundle), with the library's words, if the graph can't be loaded or is not what
  // the manifest says.
  virtual std::unique_ptr<Session> load(const EngineSpec& spec) = 0;
  // E.g. "ONNX Runtime 1.31.0, skipdec avx512vnni".
  virtual std::string description() const = 0;
};

}  // namespace skipdec::runtime
