// The engines and paths of manifest.json, read from its JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "bundle/manifest.h"
#include "json/fields.h"

namespace skipdec::runtime {

// An engine, and its place among the layers according to its entry.
struct EngineEntry {
  EngineSpec spec;
  std::optional<std::int64_t> layer_index;
};

EngineEntry engine_of(const nlohmann::json& value, const std::string& place,
                      const Document& document);

// Throws an error of ``document`` unless the engine at ``place`` has this name, kind and index.
void require_engine(const EngineEntry& entry, const std::string& place, std::string_view name,
                    EngineKind kind, std::optional<std::int64_t> layer_index,
                    const Document& document);

// Reads the engine ``name``, which is not one of the stack, from the member ``member``.
EngineSpec named_engine_of(Fields& fields, const char* member, std::string_view name,
                           EngineKind kind, const Document& document);

// Returns a relative path that stays in the bundle and is in normal form.
const std::string& path_of(const nlohmann::json& value, const std::string& place,
                           const Document& document);

const std::string& sha256_of(const nlohmann::json& value, const std::string& place,
                             const Document& document);

}  // namespace skipdec::runtime
