// libonnxruntime.so, loaded when the first bundle that needs it is opened.
#pragma once

#include <string>
#include <vector>

#include "sessions/onnxruntime/api.h"

namespace skipdec::runtime::onnxruntime {

struct Library {
  const abi::ApiBase* base;
  Api api;
  std::string path;
  std::string version;  // "1.31.0"
  void* handle;         // from dlopen
};

// Returns the library of this process, which is never unloaded. The first call searches in this
// order:
//   1. ``path``, if it is not empty
//   2. the environment variable SKIPDEC_ONNXRUNTIME
//   3. libonnxruntime.so.1 or libonnxruntime.so beside the file that contains this code
//   4. onnxruntime/capi/ in a folder above that file: the Python package beside skipdec's
//   5. libonnxruntime.so.1 that this process has already loaded
//   6. the Python package of the environment VIRTUAL_ENV
//   7. libonnxruntime.so.1 in the system's library paths
// If 1 or 2 names a file that cannot be used, the search fails.
//
// Throws Error (kEnvironment) with every path tried if none is found or it is too old, and Error
// (kUsage) if ``path`` differs from the loaded file.
const Library& load_library(const std::string& path);

}  // namespace skipdec::runtime::onnxruntime
