// Names of types, kinds and roles in manifest.json.
#pragma once

#include <optional>
#include <string_view>

#include "bundle/manifest.h"

namespace skipdec::runtime {

std::optional<DType> dtype_called(std::string_view name);
std::optional<EngineKind> kind_called(std::string_view name);
std::optional<Role> role_called(std::string_view name);

}  // namespace skipdec::runtime
