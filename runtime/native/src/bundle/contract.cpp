#include "bundle/contract.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "bundle/names.h"
#include "constants.h"
#include "errors.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

using Roles = std::vector<Role>;

struct KindContract {
  Roles inputs;  // each once
  Roles also;    // further inputs that a target or a family may need
  Roles outputs;
};

// In the order of EngineKind.
const std::array<KindContract, 6>& kind_contracts() {
  static const std::array<KindContract, 6> contracts{{
      {{Role::kInputIds}, {Role::kPositionIds}, {Role::kHiddenStatesOut}},
      {{Role::kHiddenStates, Role::kPastKey, Role::kPastValue},
       {Role::kPositionIds, Role::kWriteIndices, Role::kAttentionMask, Role::kSeqlensK,
        Role::kTotalSequenceLength},
       {Role::kHiddenStatesOut, Role::kPresentKey, Role::kPresentValue}},
      {{Role::kHiddenStates, Role::kRowPositions}, {}, {Role::kLogits}},
      {{Role::kLogits}, {}, {Role::kTopLogits, Role::kTopTokenIds}},
      {{Role::kStates}, {}, {Role::kHiddenStatesOut}},
      {{Role::kStates}, {}, {Role::kHiddenStatesOut}},
  }};
  return contracts;
}

enum class Elements { kInt64, kInt32, kBool, kFloat32, kHidden, kCache };

struct TensorContract {
  Elements elements;
  std::string_view symbols;
};

// In the order of Role.
constexpr std::array<TensorContract, 17> kTensors{{{Elements::kInt64, "BS"},
                                                   {Elements::kInt64, "BS"},
                                                   {Elements::kHidden, "BSE"},
                                                   {Elements::kHidden, "BSE"},
                                                   {Elements::kCache, "BNTW"},
                                                   {Elements::kCache, "BNTW"},
                                                   {Elements::kCache, "BNTW"},
                                                   {Elements::kCache, "BNTW"},
                                                   {Elements::kInt64, "B"},
                                                   {Elements::kBool, "B1ST"},
                                                   {Elements::kInt32, "B"},
                                                   {Elements::kInt32, ""},
                                                   {Elements::kInt64, "R"},
                                                   {Elements::kFloat32, "RV"},
                                                   {Elements::kFloat32, "RK"},
                                                   {Elements::kInt64, "RK"},
                                                   {Elements::kHidden, "BSJ"}}};

DType dtype_of(Elements elements, const Manifest& manifest) {
  switch (elements) {
    case Elements::kInt64:
      return DType::kInt64;
    case Elements::kInt32:
      return DType::kInt32;
    case Elements::kBool:
      return DType::kBool;
    case Elements::kFloat32:
      return DType::kFloat32;
    case Elements::kHidden:
      return manifest.hidden_dtype;
    case Elements::kCache:
      return manifest.kv_dtype;
  }
  return DType::kFloat32;
}

// The number of states that a draft engine joins: those of three depths, or a token's embedding and
// the state joined from these three.
std::int64_t joined_by(EngineKind kind) {
  return kind == EngineKind::kStates ? 3 : kind == EngineKind::kEntry ? 2 : 1;
}

std::int64_t size_of(char symbol, EngineKind kind, const Manifest& manifest, std::int64_t tokens) {
  const ModelSpec& model = manifest.model;
  switch (symbol) {
    case '1':
      return 1;
    case 'E':
      return model.hidden_size;
    case 'N':
      return model.num_kv_heads;
    case 'W':
      return manifest.kv_width;
    case 'V':
      return tokens;
    case 'K':
      return std::min(constants::kNumCandidates, model.vocab_size);
    case 'J':
      return joined_by(kind) * model.hidden_size;
    default:
      return kSymbol;
  }
}

std::string listed(const Roles& roles) {
  return roles.empty() ? "none" : joined(roles, [](Role role) { return name_of(role); });
}

bool holds(const Roles& roles, Role role) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

class Contract {
 public:
  explicit Contract(const Manifest& manifest) : manifest_(manifest) {}

  std::vector<std::string> problems;

  // Checks an engine whose logits, if any, score ``tokens`` tokens.
  void check(const EngineSpec& spec, std::int64_t tokens) {
    const KindContract& kind = kind_contracts()[static_cast<std::size_t>(spec.kind)];
    check_roles(spec, "inputs", spec.inputs, kind.inputs, kind.also);
    check_roles(spec, "outputs", spec.outputs, kind.outputs, {});
    for (const TensorSpec& tensor : spec.inputs) check_tensor(spec, tensor, tokens);
    for (const TensorSpec& tensor : spec.outputs) check_tensor(spec, tensor, tokens);
  }

  void check_buckets(const EngineSpec& layer) {
    if (layer.buckets.empty()) return;
    std::vector<std::int64_t> capacities;
    capacities.reserve(layer.buckets.size());
    for (const KVBucket& bucket : layer.buckets) capacities.push_back(bucket.capacity);
    if (capacities != manifest_.kv_buckets)
      problems.push_back("engine " + layer.name + " has plans for KV capacities " +
                         text_of(capacities) + "; built: " + text_of(manifest_.kv_buckets));
  }

 private:
  void check_roles(const EngineSpec& spec, const std::string& direction,
                   const std::vector<TensorSpec>& tensors, const Roles& needed, const Roles& also) {
    Roles roles;
    std::set<std::string_view> names;
    bool fits = true;
    for (const TensorSpec& tensor : tensors) {
      fits = fits && !holds(roles, tensor.role) &&
             (holds(needed, tensor.role) || holds(also, tensor.role)) &&
             names.insert(tensor.name).second;
      roles.push_back(tensor.role);
    }
    for (const Role role : needed) fits = fits && holds(roles, role);
    if (!fits)
      problems.push_back("engine " + spec.name + " has the " + direction + " " + listed(roles) +
                         "; expected " + listed(needed) + ", each once");
  }

  void check_tensor(const EngineSpec& spec, const TensorSpec& tensor, std::int64_t tokens) {
    const TensorContract& contract = kTensors[static_cast<std::size_t>(tensor.role)];
    const std::string start = "engine " + spec.name + ": " + tensor.name + " is ";
    const DType dtype = dtype_of(contract.elements, manifest_);
    if (tensor.dtype != dtype)
      problems.push_back(start + std::string(name_of(tensor.dtype)) + "; expected " +
                         std::string(name_of(dtype)));
    std::vector<std::int64_t> expected;
    expected.reserve(contract.symbols.size());
    for (const char symbol : contract.symbols)
      expected.push_back(size_of(symbol, spec.kind, manifest_, tokens));
    if (tensor.shape != expected)
      problems.push_back(start + text_of(tensor.shape) + "; expected " + text_of(expected));
  }

  const Manifest& manifest_;
};

}  // namespace

void check_contract(const Manifest& manifest, const std::string& subject) {
  Contract contract(manifest);
  const std::int64_t vocab_size = manifest.model.vocab_size;
  contract.check(manifest.embed, vocab_size);
  for (const EngineSpec& layer : manifest.layers) contract.check(layer, vocab_size);
  contract.check(manifest.head, vocab_size);
  if (manifest.candidates) contract.check(*manifest.candidates, vocab_size);
  if (const auto& draft = manifest.trained_draft) {
    const auto tokens = static_cast<std::int64_t>(draft->token_ids.size());
    for (const EngineSpec* spec : draft->engines()) contract.check(*spec, tokens);
  }
  if (const auto& draft = manifest.draft_head) contract.check(draft->engine, draft->tokens);
  for (const EngineSpec& layer : manifest.layers) contract.check_buckets(layer);
  if (const auto& draft = manifest.trained_draft) contract.check_buckets(draft->layer);
  if (contract.problems.empty()) return;
  contract.problems.emplace_back("export the model again");
  throw Error(Status::kBundle, subject, contract.problems);
}

}  // namespace skipdec::runtime
