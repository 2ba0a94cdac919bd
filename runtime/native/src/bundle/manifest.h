// Contents of a bundle according to manifest.json: model, precision, engines by role, files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/sampling_defaults.h"

namespace skipdec::runtime {

// In the order of constants.json.
enum class DType { kFloat32, kFloat16, kBfloat16, kInt64, kInt32, kUint8, kInt8, kBool };

enum class EngineKind { kEmbed, kLayer, kHead, kCandidates, kStates, kEntry };

// Meaning of a tensor, independent of its name in the graph. Shapes: B rows, S tokens per row,
// E hidden size, N heads, T KV capacity, W width of a cached head, R gathered positions,
// V vocabulary, K candidates, J states joined.
enum class Role {
  kInputIds,             // int64 [B, S]
  kPositionIds,          // int64 [B, S]
  kHiddenStates,         // float [B, S, E]
  kHiddenStatesOut,      // float [B, S, E]
  kPastKey,              // [B, N, T, W]
  kPastValue,            // [B, N, T, W]
  kPresentKey,           // the same buffer as past_key
  kPresentValue,         // the same buffer as past_value
  kWriteIndices,         // int64 [B]
  kAttentionMask,        // bool [B, 1, S, T]
  kSeqlensK,             // int32 [B]
  kTotalSequenceLength,  // int32 scalar
  kRowPositions,         // int64 [R]
  kLogits,               // float32 [R, V]
  kTopLogits,            // float32 [R, K]
  kTopTokenIds,          // int64 [R, K]
  kStates,               // float [B, S, J E], concatenated states, for drafts
};

std::size_t item_bytes(DType dtype);
std::string_view name_of(DType dtype);
std::string_view name_of(EngineKind kind);
std::string_view name_of(Role role);

constexpr std::int64_t kSymbol = -1;  // a dimension that each call chooses

struct TensorSpec {
  std::string name;
  Role role = Role::kInputIds;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;  // kSymbol for symbols
};

// Layers of TensorRT have one plan per static KV capacity, ascending.
struct KVBucket {
  std::int64_t capacity = 0;
  std::string graph;
};

struct EngineSpec {
  std::string name;
  EngineKind kind = EngineKind::kLayer;
  std::string graph;                 // relative path
  std::vector<std::string> weights;  // relative paths
  std::vector<KVBucket> buckets;
  std::vector<TensorSpec> inputs, outputs;
  std::int64_t step_bytes = 0;  // that a call for one token reads

  const TensorSpec* find(Role role) const;  // nullptr if it has none
};

struct ModelSpec {
  std::string name;
  std::int64_t num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t vocab_size = 0, max_seq_len = 0;
  std::optional<std::int64_t> eos_token_id;
  std::vector<std::int64_t> end_token_ids;  // the tokens that end a text, eos_token_id first
  SamplingDefaults sampling_defaults;
};

struct FileRecord {
  std::string path;
  std::uint64_t size = 0;
  std::string sha256;
};

// The trained draft layer: ``states`` joins the states that are read into one, and ``entry`` joins
// a token's embedding and the state of the token before it into the layer's input.
struct TrainedDraft {
  std::vector<std::int64_t> reads;      // after how many layers states are read, ascending
  std::vector<std::int64_t> token_ids;  // tokens that ``head`` scores, ascending
  EngineSpec states, entry, layer, head;

  std::array<const EngineSpec*, 4> engines() const { return {&states, &entry, &layer, &head}; }
};

// The narrow head: an engine of the head's first columns, on the head's weights.
struct DraftHead {
  std::int64_t tokens = 0;  // number of the vocabulary's first tokens that it scores
  EngineSpec engine;
};

struct Manifest {
  std::string target;                 // "onnxruntime", "tensorrt"
  bool uses_skipdec_kernels = false;  // graphs have operators of the domain "skipdec"
  // Kinds of weights, each once, whose products ONNX Runtime computes even with skipdec's kernels.
  std::vector<std::string> foreign_products;
  ModelSpec model;
  DType hidden_dtype = DType::kFloat32, kv_dtype = DType::kFloat32;
  std::int64_t kv_width = 0;  // W: head_dim, and 4 more in int8 (a float32 scale)
  EngineSpec embed, head;
  std::vector<EngineSpec> layers;
  std::optional<EngineSpec> candidates;
  std::vector<EngineSpec> canonical;  // kept by --keep-canonical, to be compiled later
  std::optional<std::string> draft;   // the drafts that "auto" selects; empty: "own"
  std::optional<TrainedDraft> trained_draft;
  std::optional<DraftHead> draft_head;
  std::optional<std::string> ngrams;           // relative path; initial tables of own drafts
  std::vector<std::int64_t> kv_buckets;        // capacities of TensorRT's plans, ascending
  std::optional<std::string> tokenizer;        // relative path
  std::optional<std::string> prompt_template;  // with "{prompt}" once
  std::optional<std::string> chat_template;    // relative path; rendered by programs with Jinja
  std::vector<FileRecord> files;
  bool is_tuned = false;     // the checkpoint was tuned to skip layers
  bool exits_early = false;  // the checkpoint was trained to exit after any layer

  // Parses and checks manifest.json (docs/bundle-format.md): version, digest, fields, limits, and
  // the roles, types and shapes of every engine. Throws Error (kBundle); ``subject`` names the
  // file.
  static Manifest parse(std::string_view text, const std::string& subject);
};

}  // namespace skipdec::runtime
