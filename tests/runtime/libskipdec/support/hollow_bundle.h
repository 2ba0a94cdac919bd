// A bundle whose manifest is real and whose engines are empty.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "sealed.h"

namespace skipdec::runtime {

// Writes a document like Python's engines/documents.py.
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

// Returns a manifest of two layers with four heads of width two. Each file contains its own path.
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
  return {{"format_version", 5},
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
          {"engines", engines},
          {"candidates", nullptr},
          {"canonical", json::array()},
          {"build", nullptr},
          {"tokenizer", "tokenizer.json"},
          {"files", files},
          {"tool_versions", {{"skipdec", "0.1.0"}}},
          {"source", {{"tuned_schedule", "2x"}}}};
}

// Returns an engine of drafts that joins ``count`` states, with the files of ``layer``.
inline nlohmann::json joining_engine(const nlohmann::json& layer, const std::string& kind,
                                     std::int64_t count) {
  nlohmann::json made = layer, states = layer["inputs"][0];
  made["name"] = kind + "_draft";
  made["kind"] = kind;
  states["name"] = states["role"] = "states";
  states["shape"][2] = count * states["shape"][2].get<std::int64_t>();
  made["inputs"] = nlohmann::json::array({states});
  made["outputs"] = nlohmann::json::array({layer["outputs"][0]});
  return made;
}

// Like hollow_manifest, with a draft layer that scores 8 tokens and a head of 16 tokens on the
// weights of the head. The draft layer has a file of its own if ``adds_file``, else the files of
// layer 1.
inline nlohmann::json drafted_manifest(bool adds_file = false) {
  using nlohmann::json;
  json document = hollow_manifest();
  json layer = document["engines"][2], head = document["engines"][3];
  layer["name"] = "layer_draft";
  layer["layer_index"] = nullptr;
  head["name"] = "head_draft";
  head["outputs"][0]["shape"][1] = 16;
  if (adds_file) {
    const std::string path = "engines/layer_draft.weights";
    layer["weights"] = json::array({path});
    document["files"].push_back(
        {{"path", path}, {"size", path.size()}, {"sha256", sha256_hex(path)}});
  }
  json own = document["engines"][3];
  own["name"] = "head_trained";
  own["outputs"][0]["shape"][1] = 8;
  document["trained_draft"] = {{"reads", {1, 1, 2}},
                               {"token_ids", {0, 2, 3, 5, 7, 8, 9, 11}},
                               {"states", joining_engine(layer, "states", 3)},
                               {"entry", joining_engine(layer, "entry", 2)},
                               {"layer", layer},
                               {"head", own}};
  document["draft_head"] = {{"tokens", 16}, {"engine", head}};
  return document;
}

// Returns a schedule.json of six layers without its digest. Its own schedule runs all layers for
// token 0, layers 0, 4 and 5 from token 1 and layers 0 and 5 from token 3; its preset "2x" runs 4,
// 3 and 2 layers.
inline nlohmann::json hollow_schedule() {
  return nlohmann::json::parse(R"({
    "schedule": {"decay": "table", "horizon": 4, "max_exit_layer": 6, "min_exit_layer": 2,
                 "num_layers": 6, "table": [6, 3, 3, 2]}})");
}

// Like hollow_schedule, but all tokens run all layers.
inline nlohmann::json full_schedule() {
  nlohmann::json document = hollow_schedule();
  document["schedule"] = nlohmann::json::parse(R"({
    "decay": "constant", "horizon": 1, "max_exit_layer": 6, "min_exit_layer": 6,
    "num_layers": 6, "warmup_layers": 0})");
  return document;
}

// Like full_schedule, for a model of two layers.
inline nlohmann::json shallow_schedule() {
  return nlohmann::json::parse(R"({
    "schedule": {"decay": "constant", "horizon": 1, "max_exit_layer": 2, "min_exit_layer": 2,
                 "num_layers": 2, "warmup_layers": 0}})");
}

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

inline void write_hollow_bundle(const std::filesystem::path& folder,
                                const nlohmann::json& manifest = hollow_manifest()) {
  for (const nlohmann::json& record : manifest["files"]) {
    const std::string path = record["path"];
    write_file(folder / path, path);
  }
  write_file(folder / "manifest.json", sealed(manifest));
  write_file(folder / "schedule.json", sealed(shallow_schedule()));
}

}  // namespace skipdec::runtime
