// Compiled if ONNX Runtime's own header is available, never linked: checks positions and parameters
// of the functions that libskipdec calls.
#include <onnxruntime_c_api.h>

#include <type_traits>

#include "sessions/onnxruntime/api.h"

namespace {

namespace ours = skipdec::runtime::onnxruntime;

// True if two parameters are passed alike: numbers of one size, or pointers of one depth.
template <class First, class Second>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<First> && std::is_pointer_v<Second>)
    return std::is_pointer_v<std::remove_pointer_t<First>> ==
           std::is_pointer_v<std::remove_pointer_t<Second>>;
  else
    return !std::is_pointer_v<First> && !std::is_pointer_v<Second> &&
           sizeof(First) == sizeof(Second);
}

template <class... First, class Result, class... Second>
constexpr bool same(ours::Function<First...>, Result (*)(Second...)) {
  if constexpr (sizeof...(First) != sizeof...(Second))
    return false;
  else
    return std::is_same_v<Result, OrtStatus*> && (alike<First, Second>() && ...);
}

constexpr bool is_at(std::size_t offset, std::size_t position) {
  return offset == position * sizeof(void*);
}

// A macro, as offsetof and decltype take names.
#define SAME(name)                                                      \
  static_assert(is_at(offsetof(OrtApi, name), ours::k##name.position)); \
  static_assert(same(ours::k##name, decltype(OrtApi::name){}))
#define RELEASES(name, handle) \
  static_assert(               \
      is_at(offsetof(OrtApi, name), ours::release_of(static_cast<const ours::handle*>(nullptr))))

SAME(CreateSession);
SAME(CreateSessionOptions);
SAME(SetSessionExecutionMode);
SAME(SetSessionLogSeverityLevel);
SAME(SetIntraOpNumThreads);
SAME(SessionGetInputCount);
SAME(SessionGetOutputCount);
SAME(SessionGetInputTypeInfo);
SAME(SessionGetOutputTypeInfo);
SAME(SessionGetInputName);
SAME(SessionGetOutputName);
SAME(CreateRunOptions);
SAME(CreateTensorWithDataAsOrtValue);
SAME(CastTypeInfoToTensorInfo);
SAME(GetTensorElementType);
SAME(GetDimensionsCount);
SAME(GetDimensions);
SAME(CreateCpuMemoryInfo);
SAME(AllocatorFree);
SAME(GetAllocatorWithDefaultOptions);
SAME(CreateEnvWithGlobalThreadPools);
SAME(DisablePerSessionThreads);
SAME(CreateThreadingOptions);
SAME(AddSessionConfigEntry);
SAME(RunWithBinding);
SAME(CreateIoBinding);
SAME(BindInput);
SAME(BindOutput);
SAME(CreateAndRegisterAllocator);
SAME(SetGlobalIntraOpNumThreads);
SAME(SetGlobalInterOpNumThreads);
SAME(AddInitializer);
SAME(CreateArenaCfg);

RELEASES(ReleaseEnv, Environment);
static_assert(is_at(offsetof(OrtApi, ReleaseStatus),
                    ours::release_of(static_cast<const skipdec::abi::Status*>(nullptr))));
RELEASES(ReleaseMemoryInfo, MemoryInfo);
RELEASES(ReleaseSession, NativeSession);
RELEASES(ReleaseValue, Value);
RELEASES(ReleaseRunOptions, RunOptions);
RELEASES(ReleaseTypeInfo, TypeInfo);
RELEASES(ReleaseSessionOptions, SessionOptions);
RELEASES(ReleaseThreadingOptions, ThreadingOptions);
RELEASES(ReleaseIoBinding, IoBinding);
RELEASES(ReleaseArenaCfg, ArenaConfiguration);

}  // namespace
