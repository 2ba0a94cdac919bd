// Declarations of the part of ONNX Runtime's C API that runs sessions, because no wheel ships its
// header. Functions have positions in a table that is only ever appended to;
// scripts/libskipdec/abi.cpp compares positions and parameters with the real header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "abi/onnxruntime.h"

namespace skipdec::runtime::onnxruntime {

using abi::SessionOptions;
using abi::TensorTypeAndShapeInfo;
using abi::Value;

struct Allocator;
struct ArenaConfiguration;
struct Environment;
struct IoBinding;
struct MemoryInfo;
struct RunOptions;
struct NativeSession;
struct ThreadingOptions;
struct TypeInfo;

inline constexpr int kErrorsOnly = 3;     // ORT_LOGGING_LEVEL_ERROR
inline constexpr int kDefaultMemory = 0;  // OrtMemTypeDefault

// The position of a function that takes ``Parameters`` and returns a status.
template <class... Parameters>
struct Function {
  std::size_t position;
};

inline constexpr Function<const Environment*, const char*, const SessionOptions*, NativeSession**>
    kCreateSession{7};
inline constexpr Function<SessionOptions**> kCreateSessionOptions{10};
inline constexpr Function<SessionOptions*, int> kSetSessionExecutionMode{13};
inline constexpr Function<SessionOptions*, int> kSetSessionLogSeverityLevel{22};
inline constexpr Function<SessionOptions*, int> kSetIntraOpNumThreads{24};
inline constexpr Function<const NativeSession*, std::size_t*> kSessionGetInputCount{30};
inline constexpr Function<const NativeSession*, std::size_t*> kSessionGetOutputCount{31};
inline constexpr Function<const NativeSession*, std::size_t, TypeInfo**> kSessionGetInputTypeInfo{
    33};
inline constexpr Function<const NativeSession*, std::size_t, TypeInfo**> kSessionGetOutputTypeInfo{
    34};
inline constexpr Function<const NativeSession*, std::size_t, Allocator*, char**>
    kSessionGetInputName{36};
inline constexpr Function<const NativeSession*, std::size_t, Allocator*, char**>
    kSessionGetOutputName{37};
inline constexpr Function<RunOptions**> kCreateRunOptions{39};
inline constexpr Function<const MemoryInfo*, void*, std::size_t, const std::int64_t*, std::size_t,
                          int, Value**>
    kCreateTensorWithDataAsOrtValue{49};
inline constexpr Function<const TypeInfo*, const TensorTypeAndShapeInfo**>
    kCastTypeInfoToTensorInfo{55};
inline constexpr Function<const TensorTypeAndShapeInfo*, int*> kGetTensorElementType{60};
inline constexpr Function<const TensorTypeAndShapeInfo*, std::size_t*> kGetDimensionsCount{61};
inline constexpr Function<const TensorTypeAndShapeInfo*, std::int64_t*, std::size_t> kGetDimensions{
    62};
inline constexpr Function<int, int, MemoryInfo**> kCreateCpuMemoryInfo{69};
inline constexpr Function<Allocator*, void*> kAllocatorFree{76};
inline constexpr Function<Allocator**> kGetAllocatorWithDefaultOptions{78};
inline constexpr Function<int, const char*, const ThreadingOptions*, Environment**>
    kCreateEnvWithGlobalThreadPools{119};
inline constexpr Function<SessionOptions*> kDisablePerSessionThreads{120};
inline constexpr Function<ThreadingOptions**> kCreateThreadingOptions{121};
inline constexpr Function<SessionOptions*, const char*, const char*> kAddSessionConfigEntry{130};
inline constexpr Function<NativeSession*, const RunOptions*, const IoBinding*> kRunWithBinding{133};
inline constexpr Function<NativeSession*, IoBinding**> kCreateIoBinding{134};
inline constexpr Function<IoBinding*, const char*, const Value*> kBindInput{136};
inline constexpr Function<IoBinding*, const char*, const Value*> kBindOutput{137};
inline constexpr Function<Environment*, const MemoryInfo*, const ArenaConfiguration*>
    kCreateAndRegisterAllocator{144};
inline constexpr Function<ThreadingOptions*, int> kSetGlobalIntraOpNumThreads{147};
inline constexpr Function<ThreadingOptions*, int> kSetGlobalInterOpNumThreads{148};
inline constexpr Function<SessionOptions*, const char*, const Value*> kAddInitializer{150};
inline constexpr Function<std::size_t, int, int, int, ArenaConfiguration**> kCreateArenaCfg{156};

// Returns the position of the function that frees a handle.
constexpr std::size_t release_of(const Environment*) { return 92; }
constexpr std::size_t release_of(const abi::Status*) { return 93; }
constexpr std::size_t release_of(const MemoryInfo*) { return 94; }
constexpr std::size_t release_of(const NativeSession*) { return 95; }
constexpr std::size_t release_of(const Value*) { return 96; }
constexpr std::size_t release_of(const RunOptions*) { return 97; }
constexpr std::size_t release_of(const TypeInfo*) { return 98; }
constexpr std::size_t release_of(const SessionOptions*) { return 100; }
constexpr std::size_t release_of(const ThreadingOptions*) { return 122; }
constexpr std::size_t release_of(const IoBinding*) { return 135; }
constexpr std::size_t release_of(const ArenaConfiguration*) { return 157; }

// An error of ONNX Runtime with its message.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class Handle>
struct Releaser {
  abi::ApiTable table;
  void operator()(Handle* handle) const {
    const void* release = table[release_of(handle)];
    reinterpret_cast<void (*)(Handle*)>(const_cast<void*>(release))(handle);
  }
};

template <class Handle>
using Owned = std::unique_ptr<Handle, Releaser<Handle>>;

// The function table of version abi::kVersion or newer.
class Api {
 public:
  explicit Api(abi::ApiTable table) : table_(table) {}

  // Throws Refusal.
  template <class... Parameters, class... Arguments>
  void call(Function<Parameters...> function, Arguments... arguments) const {
    check(status_of(function, arguments...));
  }

  // Returns true on success; drops the error otherwise.
  template <class... Parameters, class... Arguments>
  bool succeeds(Function<Parameters...> function, Arguments... arguments) const {
    return owned(status_of(function, arguments...)) == nullptr;
  }

  // Returns the value that ``function`` writes through its last parameter.
  template <class Handle, class... Parameters, class... Arguments>
  Owned<Handle> make(Function<Parameters...> function, Arguments... arguments) const {
    Handle* made = nullptr;
    call(function, arguments..., &made);
    return Owned<Handle>(made, Releaser<Handle>{table_});
  }

  // Throws Refusal unless the status is nullptr.
  void check(abi::Status* status) const {
    if (status != nullptr) refuse(status);
  }

 private:
  template <class... Parameters, class... Arguments>
  abi::Status* status_of(Function<Parameters...> function, Arguments... arguments) const {
    const void* pointer = table_[function.position];
    return reinterpret_cast<abi::Status* (*)(Parameters...)>(const_cast<void*>(pointer))(
        arguments...);
  }

  Owned<abi::Status> owned(abi::Status* status) const {
    return Owned<abi::Status>(status, Releaser<abi::Status>{table_});
  }

  [[noreturn]] void refuse(abi::Status* status) const {
    const Owned<abi::Status> kept = owned(status);
    throw Refusal(abi::call<const char*>(table_, abi::Slot::kGetErrorMessage,
                                         static_cast<const abi::Status*>(kept.get())));
  }

  abi::ApiTable table_;
};

}  // namespace skipdec::runtime::onnxruntime
