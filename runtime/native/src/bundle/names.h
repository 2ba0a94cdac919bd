// Names of types, kinds and roles in manifest.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.h"

namespace skipdec::runtime {

// Formats the sizes of a shape: "(a symbol, 64)".
std::string text_of(const std::vector<std::int64_t>& shape);

std::optional<DType> dtype_called(std::string_view name);
std::optional<EngineKind> kind_called(std::string_view name);
std::optional<Role> role_called(std::string_view name);

}  // namespace skipdec::runtime
