#include "bundle/names.h"

#include <array>
#include <cstddef>

#include "constants.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

// In the order of the enumerators, like the names in constants.json.
constexpr std::array<std::size_t, constants::kDataTypes.size()> kItemBytes{4, 2, 2, 8, 4, 1, 1, 1};

template <class Enumeration, class Names>
std::optional<Enumeration> called(const Names& names, std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Enumeration>(i);
  return std::nullopt;
}

}  // namespace

std::size_t item_bytes(DType dtype) { return kItemBytes[static_cast<std::size_t>(dtype)]; }

std::string_view name_of(DType dtype) {
  return constants::kDataTypes[static_cast<std::size_t>(dtype)];
}

std::string_view name_of(EngineKind kind) {
  return constants::kEngineKinds[static_cast<std::size_t>(kind)];
}

std::string_view name_of(Role role) {
  return constants::kTensorRoles[static_cast<std::size_t>(role)];
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  const auto size_text = [](std::int64_t size) {
    return size < 0 ? "a symbol" : std::to_string(size);
  };
  return "(" + joined(shape, size_text) + ")";
}

std::optional<DType> dtype_called(std::string_view name) {
  return called<DType>(constants::kDataTypes, name);
}

std::optional<EngineKind> kind_called(std::string_view name) {
  return called<EngineKind>(constants::kEngineKinds, name);
}

std::optional<Role> role_called(std::string_view name) {
  return called<Role>(constants::kTensorRoles, name);
}

}  // namespace skipdec::runtime
