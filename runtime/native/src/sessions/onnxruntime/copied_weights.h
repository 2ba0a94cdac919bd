// Weights copied to memory of this process, in huge pages if the system provides them.
//
// ONNX Runtime normally maps files, so that opening copies nothing and processes share the pages. A
// copy belongs to one process and takes as long as reading the files, but a step that streams
// gigabytes walks fewer page tables.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "sessions/onnxruntime/api.h"

namespace skipdec::runtime::onnxruntime {

// Owns anonymous memory.
class HugePages {
 public:
  // Throws Error (kMemory) if the memory is not available.
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

// Memory that a session reads instead of files; it must outlive the session.
struct CopiedWeights {
  std::vector<std::shared_ptr<const HugePages>> files;
  std::vector<Owned<Value>> values;
};

// Copies of files, held by sessions, so that engines of the same file share its copy.
class FileCopies {
 public:
  // Returns the copy that a session already holds, else a new one. Any thread may call it. Throws
  // Error (kBundle) for a file that can't be read or has another size.
  std::shared_ptr<const HugePages> content(const Bundle& bundle, const std::string& path);

 private:
  std::mutex changing_;
  std::map<std::string, std::weak_ptr<const HugePages>> held_;
};

// Reads the weights of an engine and makes a session of ``options`` use them. Throws Error
// (kBundle) for a file of the wrong size, or a graph that refers to bytes beyond the end of a file.
CopiedWeights copy_weights(const Bundle& bundle, const EngineSpec& spec, const Api& api,
                           const MemoryInfo* memory, FileCopies& copies, SessionOptions* options);

}  // namespace skipdec::runtime::onnxruntime
