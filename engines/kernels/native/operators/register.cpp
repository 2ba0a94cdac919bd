// Entry points of the library, called by ONNX Runtime when a session registers it and by Python.
#include <array>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <string>

#include "abi/onnxruntime.h"
#include "attention/operator.h"
#include "blocks/block_linear.h"
#include "blocks/block_product.h"
#include "floats/float_linear.h"
#include "int8/integer_product.h"
#include "int8/quantized_linear.h"
#include "norms/operators.h"
#include "operators/custom_operator.h"
#include "processor/instruction_set.h"
#include "sampling/draw.h"

namespace {

namespace abi = skipdec::abi;
using abi::ElementType;

constexpr const char* kThreads = "skipdec.threads";

// The operators of domain "skipdec", version 1, for sessions with teams of this many threads.
struct Domain {
  explicit Domain(int threads)
      : operators{skipdec::custom_operator<skipdec::AttentionOn<ElementType::kFloat>>(threads),
                  skipdec::custom_operator<skipdec::AttentionOn<ElementType::kFloat16>>(threads),
                  skipdec::custom_operator<skipdec::AttentionOn<ElementType::kBfloat16>>(threads),
                  skipdec::custom_operator<skipdec::AttentionOn<ElementType::kInt8>>(threads),
                  skipdec::custom_operator<skipdec::BlockLinear4>(threads),
                  skipdec::custom_operator<skipdec::BlockLinear8>(threads),
                  skipdec::custom_operator<skipdec::FloatLinear>(threads),
                  skipdec::custom_operator<skipdec::LayerNorm>(threads),
                  skipdec::custom_operator<skipdec::QuantizedLinear>(threads),
                  skipdec::custom_operator<skipdec::RmsNorm>(threads)} {}

  std::array<skipdec::Operator, 10> operators;
  abi::CustomOpDomain* made = nullptr;
};

// Domains are created once and never freed, because they must outlive every session.
abi::Status* domain_of(abi::ApiTable api, int threads, abi::CustomOpDomain** domain) {
  using abi::Slot;
  static std::mutex mutex;
  static auto& domains = *new std::map<int, Domain>;
  const std::scoped_lock lock(mutex);
  Domain& of_threads = domains.try_emplace(threads, threads).first->second;
  if (of_threads.made == nullptr) {
    abi::CustomOpDomain* fresh = nullptr;
    abi::Status* status = abi::call(api, Slot::kCreateCustomOpDomain, "skipdec", &fresh);
    for (const abi::CustomOp& each : of_threads.operators) {
      if (status == nullptr) status = abi::call(api, Slot::kCustomOpDomainAdd, fresh, &each);
    }
    if (status != nullptr) return status;
    of_threads.made = fresh;
  }
  *domain = of_threads.made;
  return nullptr;
}

// Reads the session's entry "skipdec.threads": 0 without one.
abi::Status* read_threads(abi::ApiTable api, abi::SessionOptions* options, int* threads) {
  using abi::Slot;
  const auto* entries = static_cast<const abi::SessionOptions*>(options);
  *threads = 0;
  int has_entry = 0;
  abi::Status* status = abi::call(api, Slot::kHasSessionConfigEntry, entries, kThreads, &has_entry);
  if (status != nullptr || has_entry == 0) return status;
  std::array<char, 16> text{};
  std::size_t size = text.size();
  status = abi::call(api, Slot::kGetSessionConfigEntry, entries, kThreads, text.data(), &size);
  if (status != nullptr) return status;
  const std::int64_t count = std::strtoll(text.data(), nullptr, 10);
  constexpr std::int64_t kMost = 4096;
  *threads = static_cast<int>(count);
  return count >= 1 && count <= kMost
             ? nullptr
             : abi::call(api, Slot::kCreateStatus, abi::kErrorCodeInvalidArgument,
                         "skipdec.threads must be 1 to 4096");
}

// Returns the chosen set, or avx512vnni if the check of AMX tiles failed, because products then run
// on avx512vnni.
skipdec::InstructionSet used_instruction_set() {
  using skipdec::InstructionSet;
  constexpr std::int64_t kManyRows = 64;
  constexpr InstructionSet kPlainer = InstructionSet::kAvx512Vnni;
  const InstructionSet chosen = skipdec::chosen_instruction_set();
  if (chosen != InstructionSet::kAmx) return chosen;
  const bool has_tiles = &skipdec::integer_kernels(chosen, kManyRows) !=
                             &skipdec::integer_kernels(kPlainer, kManyRows) &&
                         &skipdec::block_kernels(chosen, 8, kManyRows) !=
                             &skipdec::block_kernels(kPlainer, 8, kManyRows);
  return has_tiles ? chosen : kPlainer;
}

}  // namespace

#define SKIPDEC_EXPORT extern "C" __attribute__((visibility("default")))

// ONNX Runtime finds this by name when a library is registered. Returns nullptr on success.
SKIPDEC_EXPORT abi::Status* RegisterCustomOps(abi::SessionOptions* options,
                                              const abi::ApiBase* base) {
  abi::ApiTable api = base->GetApi(abi::kVersion);
  if (api == nullptr) {
    // This ONNX Runtime has no table of our version; the table of version 1 can create a status.
    return abi::call(base->GetApi(1), abi::Slot::kCreateStatus, abi::kErrorCodeFail,
                     "skipdec's kernels need ONNX Runtime 1.18 or newer");
  }
  int threads = 0;
  abi::CustomOpDomain* domain = nullptr;
  abi::Status* status = read_threads(api, options, &threads);
  if (status == nullptr) status = domain_of(api, threads, &domain);
  return status != nullptr ? status
                           : abi::call(api, abi::Slot::kAddCustomOpDomain, options, domain);
}

// Returns the name of the instruction set on which kernels created now would run; nullptr if
// SKIPDEC_INSTRUCTION_SET names one that cannot run here.
SKIPDEC_EXPORT const char* skipdec_instruction_set() {
  try {
    return skipdec::name_of(used_instruction_set());
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Returns the names of the sets that can run here, best first, separated by spaces.
SKIPDEC_EXPORT const char* skipdec_instruction_sets() {
  static const std::string names = skipdec::available_instruction_sets();
  return names.c_str();
}

// Returns the function that draws tokens on the set on which kernels created now would run; nullptr
// like skipdec_instruction_set.
SKIPDEC_EXPORT skipdec::DrawToken skipdec_drawing() {
  try {
    return skipdec::drawing(skipdec::chosen_instruction_set()).draw_token;
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Returns the token that ``draw`` chooses from logits [size] by the function from skipdec_drawing;
// -1 if a logit is NaN or +infinity, or none is finite; -2 if memory is exhausted.
SKIPDEC_EXPORT std::int64_t skipdec_draw_token(skipdec::DrawToken draw_token,
                                               const skipdec::Draw* draw, const float* logits,
                                               std::int64_t size) {
  static thread_local skipdec::DrawScratch scratch;
  try {
    return draw_token(*draw, logits, size, scratch);
  } catch (const std::exception&) {
    return -2;
  }
}
