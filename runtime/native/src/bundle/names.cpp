#include "bundle/names.h"

#include <array>
#include <cstddef>

namespace skipdec::runtime {
namespace {

struct NamedType {
  std::string_view name;
  std::size_t bytes;
};

// In the order of their enumerators.
constexpr std::array<NamedType, 8> kTypes{{{"float32", 4},
                                           {"float16", 2},
                                           {"bfloat16", 2},
                                           {"int64", 8},
                                           {"int32", 4},
                                           {"uint8", 1},
                                           {"int8", 1},
                                           {"bool", 1}}};
constexpr std::array<std::string_view, 4> kKinds{"embed", "layer", "head", "candidates"};
constexpr std::array<std::string_view, 16> kRoles{
    "input_ids",     "position_ids",   "hidden_states", "hidden_states_out",
    "past_key",      "past_value",     "present_key",   "present_value",
    "write_indices", "attention_mask", "seqlens_k",     "total_sequence_length",
    "row_positions", "logits",         "top_logits",    "top_token_ids"};

template <class Enumeration, class Names>
std::optional<Enumeration> called(const Names& names, std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Enumeration>(i);
  return std::nullopt;
}

}  // namespace

std::size_t item_bytes(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].bytes; }

std::string_view name_of(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)].name; }

std::string_view name_of(EngineKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::string_view name_of(Role role) { return kRoles[static_cast<std::size_t>(role)]; }

std::optional<DType> dtype_called(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

std::optional<EngineKind> kind_called(std::string_view name) {
  return called<EngineKind>(kKinds, name);
}

std::optional<Role> role_called(std::string_view name) { return called<Role>(kRoles, name); }

}  // namespace skipdec::runtime
