// libonnxruntime.so, loaded when the first bundle is opened that needs it.
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
  void* handle;         // dlopen's
};

// The one library of this process, which is never unloaded. The first call looks for it, in order:
//   1. ``asked``, if it is not empty
//   2. the environment variable SKIPDEC_ONNXRUNTIME
//   3. libonnxruntime.so.1 or libonnxruntime.so beside the file that holds this code
//   4. onnxruntime/capi/ in a folder around that file: the Python package beside skipdec's
//   5. libonnxruntime.so.1 that this process has already loaded
//   6. the Python package of the environment VIRTUAL_ENV
//   7. libonnxruntime.so.1 where the system looks for libraries
// What 1 or 2 names is taken or refused: nothing else is tried.
//
// Throws Error (kEnvironment), with all that was tried, if there is none or it is too old, and
// Error (kUsage) if ``asked`` is another file than the one that is loaded.
const Library& load_library(const std::string& asked);

}  // namespace skipdec::runtime::onnxruntime
