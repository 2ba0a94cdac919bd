// Compiled if ONNX Runtime's own header is available, never linked: checks our function positions.
#include <onnxruntime_c_api.h>

#include "abi/onnxruntime.h"

namespace {

using skipdec::abi::CustomOp;
using skipdec::abi::Slot;

constexpr std::size_t offset_of(Slot slot) {
  return static_cast<std::size_t>(slot) * sizeof(void*);
}

static_assert(offset_of(Slot::kCreateStatus) == offsetof(OrtApi, CreateStatus));
static_assert(offset_of(Slot::kGetErrorMessage) == offsetof(OrtApi, GetErrorMessage));
static_assert(offset_of(Slot::kCreateCustomOpDomain) == offsetof(OrtApi, CreateCustomOpDomain));
static_assert(offset_of(Slot::kCustomOpDomainAdd) == offsetof(OrtApi, CustomOpDomain_Add));
static_assert(offset_of(Slot::kAddCustomOpDomain) == offsetof(OrtApi, AddCustomOpDomain));
static_assert(offset_of(Slot::kGetTensorMutableData) == offsetof(OrtApi, GetTensorMutableData));
static_assert(offset_of(Slot::kGetTensorElementType) == offsetof(OrtApi, GetTensorElementType));
static_assert(offset_of(Slot::kGetDimensionsCount) == offsetof(OrtApi, GetDimensionsCount));
static_assert(offset_of(Slot::kGetDimensions) == offsetof(OrtApi, GetDimensions));
static_assert(offset_of(Slot::kGetTensorTypeAndShape) == offsetof(OrtApi, GetTensorTypeAndShape));
static_assert(offset_of(Slot::kKernelInfoGetAttributeFloat) ==
              offsetof(OrtApi, KernelInfoGetAttribute_float));
static_assert(offset_of(Slot::kKernelInfoGetAttributeInt64) ==
              offsetof(OrtApi, KernelInfoGetAttribute_int64));
static_assert(offset_of(Slot::kKernelContextGetInputCount) ==
              offsetof(OrtApi, KernelContext_GetInputCount));
static_assert(offset_of(Slot::kKernelContextGetInput) == offsetof(OrtApi, KernelContext_GetInput));
static_assert(offset_of(Slot::kKernelContextGetOutput) ==
              offsetof(OrtApi, KernelContext_GetOutput));
static_assert(offset_of(Slot::kReleaseStatus) == offsetof(OrtApi, ReleaseStatus));
static_assert(offset_of(Slot::kReleaseTensorTypeAndShapeInfo) ==
              offsetof(OrtApi, ReleaseTensorTypeAndShapeInfo));
static_assert(offset_of(Slot::kHasSessionConfigEntry) == offsetof(OrtApi, HasSessionConfigEntry));
static_assert(offset_of(Slot::kGetSessionConfigEntry) == offsetof(OrtApi, GetSessionConfigEntry));
static_assert(offset_of(Slot::kKernelInfoGetConstantInputTensor) ==
              offsetof(OrtApi, KernelInfoGetConstantInput_tensor));
static_assert(offset_of(Slot::kKernelContextParallelFor) ==
              offsetof(OrtApi, KernelContext_ParallelFor));
static_assert(sizeof(OrtCustomOp) >= sizeof(CustomOp));
static_assert(offsetof(OrtCustomOp, GetName) == offsetof(CustomOp, GetName));
static_assert(offsetof(OrtCustomOp, KernelComputeV2) == offsetof(CustomOp, KernelComputeV2));
static_assert(offsetof(OrtCustomOp, ReleaseAliasMap) == offsetof(CustomOp, ReleaseAliasMap));

}  // namespace
