// Weights in memory of this process, in huge pages where the system gives them.
//
// ONNX Runtime maps files: opening copies nothing and processes share the pages. A copy belongs to
// one process and takes as long as reading; fewer page tables are walked while a step streams
// gigabytes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "sessions/onnxruntime/api.h"

namespace skipdec::runtime::onnxruntime {

// Anonymous memory, freed with this object.
class HugePages {
 public:
  // Throws Error (kCapacity) where there is no such memory.
  explicit HugePages(std::size_t size);
  ~HugePages();
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  char* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  char* mapping_;
  std::size_t mapped_;
  char* data_;
  std::size_t size_;
};

// What a session reads in place of files; it outlives the session.
struct CopiedWeights {
  std::vector<std::unique_ptr<HugePages>> files;
  std::vector<Owned<Value>> values;
};

// Reads the weights of an engine and has a session of ``options`` use them. Throws Error (kBundle)
// for a file of another size, and a graph that asks for bytes that there are not.
CopiedWeights copy_weights(const Bundle& bundle, const EngineSpec& spec, const Api& api,
                           const MemoryInfo* memory, SessionOptions* options);

}  // namespace skipdec::runtime::onnxruntime
