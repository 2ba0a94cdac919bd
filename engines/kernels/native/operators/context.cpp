#include "operators/context.h"

#include "processor/standard_floats.h"

namespace skipdec {
namespace {

using abi::Slot;

void check(abi::ApiTable api, abi::Status* status) {
  if (status == nullptr) return;
  const std::string words =
      abi::call<const char*>(api, Slot::kGetErrorMessage, static_cast<const abi::Status*>(status));
  abi::call<void>(api, Slot::kReleaseStatus, status);
  throw OperatorError(words);
}

// Returns true if the call succeeded, and drops its error otherwise.
bool succeeds(abi::ApiTable api, abi::Status* status) {
  if (status != nullptr) abi::call<void>(api, Slot::kReleaseStatus, status);
  return status == nullptr;
}

Tensor described(abi::ApiTable api, const abi::Value* value) {
  abi::TensorTypeAndShapeInfo* info = nullptr;
  check(api, abi::call(api, Slot::kGetTensorTypeAndShape, value, &info));
  const auto* constant_info = static_cast<const abi::TensorTypeAndShapeInfo*>(info);
  Tensor tensor;
  abi::Status* status = abi::call(api, Slot::kGetDimensionsCount, constant_info, &tensor.rank);
  const bool fits = tensor.rank <= Tensor::kMaximumRank;
  if (status == nullptr && fits) {
    status = abi::call(api, Slot::kGetDimensions, constant_info, tensor.dims.data(), tensor.rank);
  }
  if (status == nullptr) {
    status = abi::call(api, Slot::kGetTensorElementType, constant_info, &tensor.type);
  }
  abi::call<void>(api, Slot::kReleaseTensorTypeAndShapeInfo, info);
  check(api, status);
  if (!fits) throw OperatorError("a tensor has more than 8 dimensions");
  check(api,
        abi::call(api, Slot::kGetTensorMutableData, const_cast<abi::Value*>(value), &tensor.data));
  return tensor;
}

}  // namespace

std::int64_t NodeInfo::attribute(const char* name, std::int64_t otherwise) const {
  std::int64_t value = 0;
  const bool found =
      succeeds(api_, abi::call(api_, Slot::kKernelInfoGetAttributeInt64, info_, name, &value));
  return found ? value : otherwise;
}

float NodeInfo::attribute(const char* name, float otherwise) const {
  float value = 0;
  const bool found =
      succeeds(api_, abi::call(api_, Slot::kKernelInfoGetAttributeFloat, info_, name, &value));
  return found ? value : otherwise;
}

Tensor NodeInfo::constant(std::size_t input) const {
  int is_constant = 0;
  const abi::Value* value = nullptr;
  check(api_, abi::call(api_, Slot::kKernelInfoGetConstantInputTensor, info_, input, &is_constant,
                        &value));
  return is_constant != 0 && value != nullptr ? described(api_, value) : Tensor{};
}

Tensor CallContext::input(std::size_t index) const {
  const auto* context = static_cast<const abi::KernelContext*>(context_);
  std::size_t count = 0;
  check(api_, abi::call(api_, Slot::kKernelContextGetInputCount, context, &count));
  if (index >= count) return Tensor{};
  const abi::Value* value = nullptr;
  check(api_, abi::call(api_, Slot::kKernelContextGetInput, context, index, &value));
  return value == nullptr ? Tensor{} : described(api_, value);
}

Tensor CallContext::output(std::size_t index,
                           const std::array<std::int64_t, Tensor::kMaximumRank>& dims,
                           std::size_t rank) const {
  abi::Value* value = nullptr;
  check(api_,
        abi::call(api_, Slot::kKernelContextGetOutput, context_, index, dims.data(), rank, &value));
  return described(api_, value);
}

void CallContext::run_parallel(Team::Task task, std::size_t tasks, void* data) const {
  if (team_ != nullptr) {
    team_->run(task, tasks, data);
    return;
  }
  struct Work {
    Team::Task task;
    void* data;
  } work{task, data};
  const Team::Task run = [](void* given, std::size_t index) {
    const StandardFloats standard;  // ONNX Runtime's threads have controls of their own
    const Work& all = *static_cast<const Work*>(given);
    all.task(all.data, index);
  };
  const auto* context = static_cast<const abi::KernelContext*>(context_);
  check(api_, abi::call(api_, Slot::kKernelContextParallelFor, context, run, tasks, std::size_t{0},
                        static_cast<void*>(&work)));
}

}  // namespace skipdec
