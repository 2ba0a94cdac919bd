// A bundle whose manifest is real and whose engines are empty.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "sealed.h"

namespace skipdec::runtime {

// As Python's engines/sealing.py writes it.
inline std::string sealed(nlohmann::json document) {
  document["digest"] = std::string(64, '0');
  return fuzzing::sealed(document.dump(2) + "\n");
}

inline nlohmann::json hollow_tensor(const char* role, const char* dtype, nlohmann::json shape) {
  return {{"name", role}, {"role", role}, {"dtype", dtype}, {"shape", std::move(shape)}};
}

inline nlohmann::json hollow_engine(const std::string& name, const char* kind,
                                    nlohmann::json layer_index, nlohmann::json inputs,
                                    nlohmann::json outputs) {
  return {{"name", name},
          {"kind", kind},
          {"layer_index", std::move(layer_index)},
          {"graph", "engines/" + name + ".onnx"},
          {"weights", nlohmann::json::array({"engines/" + name + ".weights"})},
          {"buckets", nlohmann::json::array()},
          {"inputs", std::move(inputs)},
          {"outputs", std::move(outputs)},
          {"step_bytes", 8}};
}

// Two layers of four heads, each two wide; all files hold their own names.
inline nlohmann::json hollow_manifest() {
  using nlohmann::json;
  const json hidden{"B", "S", 8}, cache{"B", 4, "T", 2};
  const auto list = [](const auto&... entries) { return json::array({entries...}); };
  json engines = list(hollow_engine("embed", "embed", nullptr,
                                    list(hollow_tensor("input_ids", "int64", {"B", "S"}),
                                         hollow_tensor("position_ids", "int64", {"B", "S"})),
                                    list(hollow_tensor("hidden_states_out", "float32", hidden))));
  for (int layer = 0; layer < 2; ++layer)
    engines.push_back(hollow_engine("layer_00" + std::to_string(layer), "layer", layer,
                                    list(hollow_tensor("hidden_states", "float32", hidden),
                                         hollow_tensor("past_key", "float32", cache),
                                         hollow_tensor("past_value", "float32", cache),
                                         hollow_tensor("write_indices", "int64", list("B"))),
                                    list(hollow_tensor("hidden_states_out", "float32", hidden),
                                         hollow_tensor("present_key", "float32", cache),
                                         hollow_tensor("present_value", "float32", cache))));
  engines.push_back(hollow_engine("head", "head", nullptr,
                                  list(hollow_tensor("hidden_states", "float32", hidden),
                                       hollow_tensor("row_positions", "int64", list("R"))),
                                  list(hollow_tensor("logits", "float32", {"R", 32}))));
  json files = json::array();
  files.push_back(
      {{"path", "tokenizer.json"}, {"size", 14}, {"sha256", sha256_hex("tokenizer.json")}});
  for (const json& engine : engines)
    for (const std::string path : {engine["graph"], engine["weights"][0]})
      files.push_back({{"path", path}, {"size", path.size()}, {"sha256", sha256_hex(path)}});
  return {{"format_version", 3},
          {"target", "onnxruntime"},
          {"model",
           {{"name", "hollow"},
            {"num_layers", 2},
            {"hidden_size", 8},
            {"num_heads", 4},
            {"ffn_dim", 16},
            {"activation_function", "relu"},
            {"vocab_size", 32},
            {"max_position_embeddings", 64},
            {"max_seq_len", 64},
            {"eos_token_id", 2}}},
          {"precision", {{"dtype", "float32"}, {"quantize", "none"}, {"head_quantize", "none"}}},
          {"kv_cache", {{"shares_buffer", true}, {"unused", "any"}}},
          {"engines", engines},
          {"candidates", nullptr},
          {"canonical", json::array()},
          {"build", nullptr},
          {"tokenizer", "tokenizer.json"},
          {"files", files},
          {"tool_versions", {{"skipdec", "0.1.0"}}},
          {"source", {{"tuned_schedule", "2x"}}}};
}

// Six layers: own segments {0: all, 1: 0 4 5, 3: 0 5}, whose prompt falls; a preset "2x".
inline nlohmann::json hollow_schedule(int num_layers = 6) {
  using nlohmann::json;
  json all = json::array();
  for (int layer = 0; layer < num_layers; ++layer) all.push_back(layer);
  const int top = num_layers - 1;
  json middle = json::array({0}), least = json::array({0});
  if (top > 1) middle.push_back(top - 1);
  for (json* layers : {&middle, &least})
    if (top > 0) layers->push_back(top);
  return {{"plan",
           {{"horizon", 4},
            {"num_layers", num_layers},
            {"prompt", nullptr},
            {"segments",
             {{{"layers", all}, {"start", 0}},
              {{"layers", middle}, {"start", 1}},
              {{"layers", least}, {"start", 3}}}},
            {"text", "own"}}},
          {"presets",
           {{"full",
             {{"prompt", nullptr},
              {"segments", json::array({{{"layers", all}, {"start", 0}}})},
              {"text", "full"}}},
            {"2x",
             {{"prompt", nullptr},
              {"segments",
               {{{"layers", all}, {"start", 0}},
                {{"layers", middle}, {"after", {1, 4}}},
                {{"layers", least}, {"after", {3, 4}}}}},
              {"text", "linear:max=4,horizon={horizon}"}}}}},
          {"schedule", {{"num_layers", num_layers}}}};
}

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

inline void write_hollow_bundle(const std::filesystem::path& folder) {
  const nlohmann::json manifest = hollow_manifest();
  for (const nlohmann::json& record : manifest["files"]) {
    const std::string path = record["path"];
    write_file(folder / path, path);
  }
  write_file(folder / "manifest.json", sealed(manifest));
  write_file(folder / "schedule.json", sealed(hollow_schedule(2)));
}

}  // namespace skipdec::runtime
