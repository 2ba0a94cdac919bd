// An operator's view of ONNX Runtime: its node, and the tensors and threads of a call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "abi/onnxruntime.h"
#include "operators/team.h"

namespace skipdec {

// Reports an invalid node or call; the session fails with its message.
class OperatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A dense host tensor, owned by the session. Absent optional inputs have no data.
struct Tensor {
  static constexpr std::size_t kMaximumRank = 8;

  void* data = nullptr;
  abi::ElementType type = abi::ElementType::kAny;
  std::size_t rank = 0;
  std::array<std::int64_t, kMaximumRank> dims{};

  explicit operator bool() const { return data != nullptr; }
  std::int64_t size() const {
    std::int64_t product = 1;
    for (std::size_t axis = 0; axis < rank; ++axis) product *= dims[axis];
    return product;
  }
  std::int64_t last() const { return rank == 0 ? 1 : dims[rank - 1]; }
  template <class Element>
  Element* as() const {
    return static_cast<Element*>(data);
  }
};

// The graph's node for which a kernel is created, once per session.
class NodeInfo {
 public:
  NodeInfo(abi::ApiTable api, const abi::KernelInfo* info) : api_(api), info_(info) {}

  std::int64_t attribute(const char* name, std::int64_t otherwise) const;
  float attribute(const char* name, float otherwise) const;
  // Returns an initialiser among the inputs, valid as long as the session; absent if the input is
  // not an initialiser.
  Tensor constant(std::size_t input) const;

 private:
  abi::ApiTable api_;
  const abi::KernelInfo* info_;
};

// One call of a kernel.
class CallContext {
 public:
  // Without a team, tasks run on the session's threads of ONNX Runtime.
  CallContext(abi::ApiTable api, abi::KernelContext* context, Team* team)
      : api_(api), context_(context), team_(team) {}

  // Returns an absent tensor for an optional input that the node omits.
  Tensor input(std::size_t index) const;
  // Returns the output's memory, which the caller may have bound.
  Tensor output(std::size_t index, const std::array<std::int64_t, Tensor::kMaximumRank>& dims,
                std::size_t rank) const;

  // Runs task(0) … task(tasks - 1) on the threads of the call, which take the next task as they
  // become free, and returns when all are done. ``task`` must not throw. A call costs about a
  // microsecond.
  template <class Task>
  void parallel_for(std::int64_t tasks, const Task& task) const {
    if (tasks == 1) {
      task(std::int64_t{0});
      return;
    }
    run_parallel(
        [](void* data, std::size_t index) {
          (*static_cast<const Task*>(data))(static_cast<std::int64_t>(index));
        },
        static_cast<std::size_t>(tasks), const_cast<Task*>(&task));
  }

  // Splits [0, size) into ranges of ``step`` and runs part(begin, end) for each, in the same way.
  template <class Part>
  void parallel_for(std::int64_t size, std::int64_t step, const Part& part) const {
    parallel_for((size + step - 1) / step, [&](std::int64_t task) noexcept {
      const std::int64_t begin = task * step;
      part(begin, size - begin < step ? size : begin + step);
    });
  }

 private:
  void run_parallel(Team::Task task, std::size_t tasks, void* data) const;

  abi::ApiTable api_;
  abi::KernelContext* context_;
  Team* team_;
};

// Returns true if one thread multiplies ``rows`` rows by ``elements`` elements faster than several
// threads would: it takes at most about 8 µs from memory (Zen 4, int8: 175,000 elements for one
// row), or 4 µs from the caches (52,000 for eight), while waking another thread costs 2 µs if it
// spins, and tens of microseconds if it sleeps.
constexpr bool is_small(std::int64_t elements, std::int64_t rows) {
  return elements * (rows + 2) < (std::int64_t{1} << 19);
}

// Throws OperatorError(problem) unless ``holds``.
inline void require(bool holds, const char* problem) {
  if (!holds) throw OperatorError(problem);
}

}  // namespace skipdec
