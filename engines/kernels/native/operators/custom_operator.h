// Derives ONNX Runtime's description of an operator from a kernel class.
//
// The class has
//   static constexpr const char* kName;   // as in the graph
//   static constexpr std::array<Operand, n> kInputs, kOutputs;
//   static constexpr int kInplaceInput;         // may share output 0's memory; -1: none
//   explicit Kernel(const NodeInfo&);           // checks the node; may throw OperatorError
//   void compute(const CallContext&) const;     // checks the call; may throw OperatorError
// and must be safe for concurrent calls of compute.
#pragma once

#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

#include "abi/onnxruntime.h"
#include "operators/context.h"
#include "processor/standard_floats.h"

namespace skipdec {

struct Operand {
  abi::ElementType type;
  abi::Characteristic characteristic = abi::Characteristic::kRequired;
};

// An operator of sessions whose kernels run on a team of this many threads; 0: ONNX Runtime's
// threads.
struct Operator : abi::CustomOp {
  int threads = 0;
};

namespace detail {

template <class Kernel>
struct Instance {
  abi::ApiTable api;
  Kernel kernel;
  Team::Membership team;  // or none
};

template <class Call>
abi::Status* reported(abi::ApiTable api, const char* name, const Call& call) {
  try {
    call();
    return nullptr;
  } catch (const std::exception& error) {
    const std::string words = std::string("skipdec::") + name + ": " + error.what();
    return abi::call(api, abi::Slot::kCreateStatus, abi::kErrorCodeInvalidArgument, words.c_str());
  }
}

inline int* single_index(int value) {
  auto* index = static_cast<int*>(std::malloc(sizeof(int)));  // freed by release_index
  if (index != nullptr) *index = value;
  return index;
}

inline void release_indices(int* first, int* second) {
  std::free(first);
  std::free(second);
}

}  // namespace detail

// Returns the description of ``Kernel``; it must outlive all sessions that use it.
template <class Kernel>
Operator custom_operator(int threads) {
  using detail::Instance;
  Operator description{};
  description.threads = threads;
  description.version = abi::kVersion;
  description.GetName = [](const abi::CustomOp*) { return Kernel::kName; };
  description.GetExecutionProviderType = [](const abi::CustomOp*) {
    return "CPUExecutionProvider";
  };
  description.GetInputTypeCount = [](const abi::CustomOp*) { return Kernel::kInputs.size(); };
  description.GetInputType = [](const abi::CustomOp*, std::size_t index) {
    return static_cast<int>(Kernel::kInputs[index].type);
  };
  description.GetInputCharacteristic = [](const abi::CustomOp*, std::size_t index) {
    return static_cast<int>(Kernel::kInputs[index].characteristic);
  };
  description.GetOutputTypeCount = [](const abi::CustomOp*) { return Kernel::kOutputs.size(); };
  description.GetOutputType = [](const abi::CustomOp*, std::size_t index) {
    return static_cast<int>(Kernel::kOutputs[index].type);
  };
  description.GetOutputCharacteristic = [](const abi::CustomOp*, std::size_t index) {
    return static_cast<int>(Kernel::kOutputs[index].characteristic);
  };
  description.GetInputMemoryType = [](const abi::CustomOp*, std::size_t) { return 0; };
  description.GetVariadicInputMinArity = [](const abi::CustomOp*) { return 1; };
  description.GetVariadicInputHomogeneity = [](const abi::CustomOp*) { return 0; };
  description.GetVariadicOutputMinArity = [](const abi::CustomOp*) { return 1; };
  description.GetVariadicOutputHomogeneity = [](const abi::CustomOp*) { return 0; };
  description.GetStartVersion = [](const abi::CustomOp*) { return 1; };
  description.GetEndVersion = [](const abi::CustomOp*) { return 1; };
  description.CreateKernelV2 = [](const abi::CustomOp* self, abi::ApiTable api,
                                  const abi::KernelInfo* info, void** kernel) {
    return detail::reported(api, Kernel::kName, [&] {
      const int threads = static_cast<const Operator*>(self)->threads;
      Team::Membership team = threads == 0 ? nullptr : Team::of(threads);
      *kernel = std::make_unique<Instance<Kernel>>(
                    Instance<Kernel>{api, Kernel(NodeInfo(api, info)), std::move(team)})
                    .release();
    });
  };
  description.KernelComputeV2 = [](void* kernel, abi::KernelContext* context) {
    const auto& instance = *static_cast<const Instance<Kernel>*>(kernel);
    return detail::reported(instance.api, Kernel::kName, [&] {
      const StandardFloats standard;
      const CallContext call(instance.api, context, instance.team.get());
      instance.kernel.compute(call);
    });
  };
  description.KernelDestroy = [](void* kernel) { delete static_cast<Instance<Kernel>*>(kernel); };
  if constexpr (Kernel::kInplaceInput >= 0) {
    description.GetMayInplace = [](int** inputs, int** outputs) -> std::size_t {
      *inputs = detail::single_index(Kernel::kInplaceInput);
      *outputs = detail::single_index(0);
      return *inputs != nullptr && *outputs != nullptr ? 1 : 0;
    };
    description.ReleaseMayInplace = detail::release_indices;
  }
  return description;
}

}  // namespace skipdec
