#include "sessions/onnxruntime/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>

#include "constants.h"
#include "errors.h"

namespace skipdec::runtime::onnxruntime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSystemName = "libonnxruntime.so.1";
constexpr const char* kAdvice =
    "install ONNX Runtime 1.18 or newer, e.g. by pip install 'onnxruntime>=1.31', or name its "
    "libonnxruntime.so by SKIPDEC_ONNXRUNTIME";

struct Attempt {
  void* handle = nullptr;
  std::string name;
  std::string problem;  // set if handle is nullptr
};

Attempt opened(const std::string& name, int flags = 0) {
  Attempt attempt;
  attempt.name = name;
  attempt.handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (attempt.handle == nullptr) {
    const char* words = ::dlerror();
    attempt.problem = words == nullptr ? "is not loaded" : words;
  }
  return attempt;
}

// Returns candidate files of the library in ``folder``.
std::vector<std::string> libraries_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().rfind("libonnxruntime.so", 0) == 0)
      found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

fs::path own_folder() {
  Dl_info about{};
  const auto* here = reinterpret_cast<const void*>(&load_library);
  if (::dladdr(here, &about) == 0 || about.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(about.dli_fname, ignored), ignored).parent_path();
}

void add(std::vector<std::string>& names, const std::vector<std::string>& more) {
  names.insert(names.end(), more.begin(), more.end());
}

// Returns candidates beside this library, and in the Python package in a folder above it.
std::vector<std::string> nearby() {
  std::vector<std::string> names;
  const fs::path own = own_folder();
  if (own.empty()) return names;
  add(names, libraries_in(own));
  for (fs::path folder = own; folder.has_relative_path(); folder = folder.parent_path())
    add(names, libraries_in(folder / "onnxruntime" / "capi"));
  return names;
}

std::vector<std::string> in_virtual_environment() {
  std::vector<std::string> names;
  const char* root = std::getenv("VIRTUAL_ENV");
  if (root == nullptr) return names;
  std::error_code ignored;
  for (const auto& python : fs::directory_iterator(fs::path(root) / "lib", ignored))
    add(names, libraries_in(python.path() / "site-packages" / "onnxruntime" / "capi"));
  return names;
}

// Returns the first candidate that can be loaded, and all that were tried.
std::vector<Attempt> search(const std::string& path) {
  const std::string variable_name(constants::kOnnxruntimeVariable);
  const char* variable = std::getenv(variable_name.c_str());
  if (!path.empty()) return {opened(path)};
  if (variable != nullptr && *variable != '\0') return {opened(variable)};
  std::vector<Attempt> attempts;
  const auto try_all = [&attempts](const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      attempts.push_back(opened(name));
      if (attempts.back().handle != nullptr) return true;
    }
    return false;
  };
  if (try_all(nearby())) return attempts;
  Attempt loaded = opened(kSystemName, RTLD_NOLOAD);
  if (loaded.handle != nullptr) {
    attempts.push_back(loaded);
    return attempts;
  }
  if (!try_all(in_virtual_environment())) try_all({kSystemName});
  return attempts;
}

// Returns advice about ``problems``. Installing the library again does not help a process that may
// not load it.
std::string advice(const std::vector<std::string>& problems) {
  const auto is_named = [&problems](const char* words) {
    return std::any_of(problems.begin(), problems.end(), [words](const std::string& problem) {
      return problem.find(words) != std::string::npos;
    });
  };
  if (is_named(std::strerror(EMFILE))) return "raise the limit of open files (ulimit -n)";
  if (is_named(std::strerror(ENOMEM)) || is_named("failed to map segment"))
    return "raise the limit of memory (ulimit -v), or free some";
  return kAdvice;
}

[[noreturn]] void refuse(const std::vector<std::string>& problems) {
  std::vector<std::string> all = problems;
  all.push_back(advice(problems));
  throw Error(Status::kEnvironment, "ONNX Runtime", all);
}

std::string file_of(const void* symbol) {
  Dl_info about{};
  return ::dladdr(symbol, &about) != 0 && about.dli_fname != nullptr ? about.dli_fname : "";
}

Library loaded(const std::string& path) {
  const std::vector<Attempt> attempts = search(path);
  const Attempt& last = attempts.back();
  if (last.handle == nullptr) {
    std::vector<std::string> problems;
    problems.reserve(attempts.size());
    for (const Attempt& attempt : attempts)
      problems.push_back(attempt.name + " can't be loaded (" + attempt.problem + ")");
    refuse(problems);
  }
  using GetBase = const abi::ApiBase* (*)();
  void* symbol = ::dlsym(last.handle, "OrtGetApiBase");
  if (symbol == nullptr) refuse({last.name + " has no OrtGetApiBase: it is another library"});
  const abi::ApiBase* base = reinterpret_cast<GetBase>(symbol)();
  const std::string version = base->GetVersionString();
  abi::ApiTable table = base->GetApi(abi::kVersion);
  if (table == nullptr) refuse({last.name + " is of version " + version});
  return Library{base, Api(table), file_of(symbol), version, last.handle};
}

}  // namespace

const Library& load_library(const std::string& path) {
  static std::mutex mutex;
  static std::optional<Library> library;
  const std::scoped_lock lock(mutex);
  if (!library) return library.emplace(loaded(path));
  if (!path.empty() && opened(path, RTLD_NOLOAD).handle != library->handle)
    throw Error(Status::kUsage, "onnxruntime",
                "is " + path + ", but this process has loaded " + library->path +
                    "; a process has one ONNX Runtime, leave the path out or give that one");
  return *library;
}

}  // namespace skipdec::runtime::onnxruntime
