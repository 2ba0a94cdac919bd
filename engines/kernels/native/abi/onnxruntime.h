// Declarations of the part of ONNX Runtime's C ABI that a library of custom operators needs,
// because no wheel ships its headers. Both structs are only ever appended to, so positions do not
// change; scripts/kernels/abi.cpp compares them with the real header where it is available.
#pragma once

#include <cstddef>
#include <cstdint>

namespace skipdec::abi {

struct Status;
struct Value;
struct KernelInfo;
struct KernelContext;
struct SessionOptions;
struct CustomOpDomain;
struct TensorTypeAndShapeInfo;
struct ShapeInferContext;

// OrtApi: a table of function pointers, called by position.
using ApiTable = const void* const*;

struct ApiBase {
  ApiTable (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

struct CustomOp {
  std::uint32_t version;
  void* (*CreateKernel)(const CustomOp*, ApiTable, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  int (*GetInputType)(const CustomOp*, std::size_t);
  std::size_t (*GetInputTypeCount)(const CustomOp*);
  int (*GetOutputType)(const CustomOp*, std::size_t);
  std::size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const CustomOp*, std::size_t);
  int (*GetOutputCharacteristic)(const CustomOp*, std::size_t);
  int (*GetInputMemoryType)(const CustomOp*, std::size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, ApiTable, const KernelInfo*, void**);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShapeFn)(const CustomOp*, ShapeInferContext*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  std::size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  std::size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

// Version 17 added KernelContext_ParallelFor, version 18 in-place operators.
constexpr std::uint32_t kVersion = 18;

enum class Slot : std::size_t {
  kCreateStatus = 0,
  kGetErrorMessage = 2,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetTensorElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kKernelInfoGetAttributeFloat = 85,
  kKernelInfoGetAttributeInt64 = 86,
  kKernelContextGetInputCount = 88,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseTensorTypeAndShapeInfo = 99,
  kHasSessionConfigEntry = 237,
  kGetSessionConfigEntry = 238,
  kKernelInfoGetConstantInputTensor = 249,
  kKernelContextParallelFor = 274,
};

// ONNXTensorElementDataType, which follows onnx.proto's TensorProto.DataType.
enum class ElementType : int {
  kAny = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kFloat16 = 10,
  kBfloat16 = 16,
};

enum class Characteristic : int { kRequired = 0, kOptional = 1 };

constexpr int kErrorCodeFail = 1;             // ORT_FAIL
constexpr int kErrorCodeInvalidArgument = 2;  // ORT_INVALID_ARGUMENT

template <class Result = Status*, class... Arguments>
Result call(ApiTable api, Slot slot, Arguments... arguments) {
  const void* function = api[static_cast<std::size_t>(slot)];
  return reinterpret_cast<Result (*)(Arguments...)>(const_cast<void*>(function))(arguments...);
}

}  // namespace skipdec::abi
