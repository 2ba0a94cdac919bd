// Tests which manifests are accepted, and which are refused before their
// contents are used.

#include "bundle/manifest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hollow_bundle.h"
#include "refusals.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

const std::string kSubject = "bundles/hollow/manifest.json";

Manifest parsed(const json& document) { return Manifest::parse(sealed(document), kSubject); }

TEST(Manifest, IsReadAsItIsWritten) {
  const Manifest manifest = parsed(hollow_manifest());
  EXPECT_EQ(manifest.target, "onnxruntime");
  EXPECT_EQ(manifest.model.family, "opt");
  EXPECT_EQ(manifest.model.num_kv_heads, 4);
  EXPECT_EQ(manifest.model.head_dim, 2);
  EXPECT_EQ(manifest.model.eos_token_id, 2);
  EXPECT_FALSE(manifest.model.bos_token_id.has_value());
  EXPECT_FALSE(manifest.uses_skipdec_kernels);
  EXPECT_FALSE(manifest.cache_must_be_finite);
  EXPECT_TRUE(manifest.is_tuned);
  EXPECT_EQ(manifest.kv_width, 2);
  EXPECT_EQ(manifest.tokenizer, "tokenizer.json");
  EXPECT_EQ(manifest.files.size(), 9U);
  ASSERT_EQ(manifest.layers.size(), 2U);
  const EngineSpec& layer = manifest.layers[1];
  EXPECT_EQ(layer.tensor(Role::kPastKey).shape, (std::vector<std::int64_t>{-1, 4, -1, 2}));
  EXPECT_EQ(layer.find(Role::kLogits), nullptr);
  EXPECT_NE(refusal([&] { layer.tensor(Role::kLogits); }).find("no tensor for logits"),
            std::string::npos);
}

json ending_manifest(const json& ends) {
  json document = hollow_manifest();
  document["end_token_ids"] = ends;
  document["requires"] = {"end_token_ids"};
  return document;
}

TEST(Manifest, NamesEveryTokenThatEndsAText) {
  EXPECT_EQ(parsed(hollow_manifest()).model.end_token_ids, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(parsed(ending_manifest({2, 5, 3})).model.end_token_ids,
            (std::vector<std::int64_t>{2, 5, 3}));
}

TEST(Manifest, RefusesEndsOfTextThatDisagree) {
  for (const json& ends : {json{2}, json{5, 2}, json{2, 5, 5}, json{2, 1 << 24}, json(5)})
    EXPECT_NE(refusal([&] { parsed(ending_manifest(ends)); }).find("end_token_ids: is"),
              std::string::npos)
        << ends;
  json document = ending_manifest({2, 5});
  document.erase("requires");
  EXPECT_NE(refusal([&] { parsed(document); }).find("requires lacks end_token_ids"),
            std::string::npos);
}

json block_manifest() {
  json document = hollow_manifest();
  document["kernels"] = "skipdec";
  const json blocks = {{"quantize", "int8-block"},
                       {"head_quantize", "int8-block"},
                       {"block_size", 64},
                       {"accuracy_level", 4}};
  document["precision"].update(blocks);
  return document;
}

TEST(Manifest, TellsPackedBlocksFromThoseOfOnnxRuntime) {
  json document = block_manifest();
  EXPECT_EQ(parsed(document).foreign_products, (std::vector<std::string>{"int8-block"}));
  document["precision"]["int8_blocks"] = "packed";
  EXPECT_NE(refusal([&] { parsed(document); }).find("requires lacks int8_blocks"),
            std::string::npos);
  document["requires"] = {"int8_blocks"};
  EXPECT_TRUE(parsed(document).foreign_products.empty());
  const json wrong[] = {{{"block_size", 16}},
                        {{"accuracy_level", 0}},
                        {{"quantize", "int4"}, {"head_quantize", "int8"}}};
  for (const json& change : wrong) {
    json changed = document;
    changed["precision"].update(change);
    EXPECT_NE(refusal([&] { parsed(changed); }).find("int8_blocks: is packed; allowed w"),
              std::string::npos)
        << change;
  }
}

TEST(Manifest, TellsWhetherTheModelWasTrainedToExitEarly) {
  json document = hollow_manifest();
  EXPECT_FALSE(parsed(document).exits_early);
  document["source"]["tuned_schedule"] = "placement=bottom";
  EXPECT_TRUE(parsed(document).exits_early);
  document["source"] = json::object();
  EXPECT_FALSE(parsed(document).is_tuned);
}

TEST(Manifest, MayHaveWhatOnlyDraftsRun) {
  EXPECT_FALSE(parsed(hollow_manifest()).draft_layer.has_value());
  EXPECT_FALSE(parsed(hollow_manifest()).draft_head.has_value());
  const Manifest manifest = parsed(drafted_manifest());
  ASSERT_TRUE(manifest.draft_layer.has_value());
  EXPECT_EQ(manifest.draft_layer->behind, 1);
  EXPECT_EQ(manifest.draft_layer->engine.weights, manifest.layers[1].weights);
  ASSERT_TRUE(manifest.draft_head.has_value());
  EXPECT_EQ(manifest.draft_head->tokens, 16);
  EXPECT_EQ(manifest.draft_head->engine.tensor(Role::kLogits).shape[1], 16);
}

TEST(Manifest, IgnoresUnknownFieldsThatItDoesNotRequire) {
  json document = hollow_manifest();
  document["surprise"] = 1;
  document["requires"] = json::array();
  document["precision"]["other"] = 1;
  document["engines"][1]["inputs"][0]["other"] = "a";
  EXPECT_EQ(parsed(document).layers.size(), 2U);
}

TEST(Manifest, SaysWhatCachesHold) {
  json document = hollow_manifest();
  document["kernels"] = "skipdec";
  document["precision"]["dtype"] = "bfloat16";
  document["precision"]["kv_dtype"] = "int8";
  document["kv_cache"]["unused"] = "finite";
  for (json& engine : document["engines"])
    for (const char* direction : {"inputs", "outputs"})
      for (json& tensor : engine[direction])
        if (tensor["shape"].size() == 4) tensor["dtype"] = "int8", tensor["shape"][3] = 6;
  const Manifest manifest = parsed(document);
  EXPECT_TRUE(manifest.uses_skipdec_kernels);
  EXPECT_TRUE(manifest.cache_must_be_finite);
  EXPECT_EQ(manifest.hidden_dtype, DType::kFloat32);
  EXPECT_EQ(manifest.kv_dtype, DType::kInt8);
  EXPECT_EQ(manifest.kv_width, 6);
}

struct Hostile {
  std::string place;  // a JSON pointer
  json value;
  std::string words;
};

class HostileManifest : public testing::TestWithParam<Hostile> {};

TEST_P(HostileManifest, IsRefusedInWordsThatNameThePlace) {
  const Hostile& hostile = GetParam();
  json document = hollow_manifest();
  document[json::json_pointer(hostile.place)] = hostile.value;
  const std::string words = refusal([&] { parsed(document); });
  EXPECT_EQ(words.rfind(kSubject + " | ", 0), 0U) << words;
  EXPECT_NE(words.find(hostile.words), std::string::npos) << words;
}

const std::vector<Hostile> kHostile{
    {"/format_version", 4, "has format version 4; this skipdec reads 3"},
    {"/format_version", "3", "has format version \"3\""},
    {"/requires", {"a", "b"}, "requires a, b, which this skipdec does not know"},
    {"/requires", 1, "requires: is 1; allowed: an array"},
    {"/requires", {1}, "requires: is 1; allowed: a text"},
    {"/precision/int8_blocks", "loose", "precision.int8_blocks: is loose; allowed: packed"},
    {"/precision/int8_blocks", "packed", "is packed; allowed with the kernels skipdec"},
    {"/model/num_layers", 0, "model.num_layers: is 0; allowed: 1 to 4096"},
    {"/model/num_layers", 4097, "allowed: 1 to 4096"},
    {"/model/num_layers", 3, "engines: has 4 entries; expected: 5"},
    {"/model/num_layers", 2.0, "model.num_layers: is 2.0"},
    {"/model/num_layers", 18446744073709551615U, "model.num_layers: is 18446744073709551615"},
    {"/model/hidden_size", 1 << 21, "allowed: 1 to 1048576"},
    {"/model/vocab_size", (1 << 24) + 1, "allowed: 1 to 16777216"},
    {"/model/max_seq_len", nullptr, "model.max_seq_len: is missing"},
    {"/model/num_heads", 9, "model.num_heads: is above hidden_size"},
    {"/model/extra", json::array(), "model.extra: is an array"},
    {"/model/eos_token_id", true, "model.eos_token_id: is true"},
    {"/kernels", "other", "kernels: is \"other\"; allowed: skipdec"},
    {"/precision/dtype", "float64", "allowed: float32, float16, bfloat16"},
    {"/precision/quantize", "int2", "precision.quantize: is \"int2\""},
    {"/precision/kv_dtype", "float16", "kv_dtype: is float16 without kernels"},
    {"/precision/table_dtype", "float16", "table_dtype: is float16; allowed with the kernels"},
    {"/precision/activation_ranges", "00", "allowed: 64 hexadecimal digits"},
    {"/kv_cache/shares_buffer", false, "past and present must be one buffer"},
    {"/kv_cache/unused", "zero", "allowed: any, finite"},
    {"/kv_cache", nullptr, "kv_cache: is missing"},
    {"/engines", 3, "engines: is 3; allowed: an array"},
    {"/engines/1/name", "layer_1", "expected: layer_000"},
    {"/engines/1/kind", "head", "expected: layer_000"},
    {"/engines/1/kind", "wheel", "engines.1.kind: is \"wheel\", which is unknown"},
    {"/engines/1/layer_index", 1, "expected: layer_000"},
    {"/engines/0/layer_index", 0, "expected: embed"},
    {"/engines/0/graph", "../../etc/passwd", "allowed: a path that stays in the bundle"},
    {"/engines/0/graph", "/etc/passwd", "allowed: a path that stays in the bundle"},
    {"/engines/0/graph", "engines//embed.onnx", "allowed: a path that stays in the bundle"},
    {"/engines/0/graph", "./engines/embed.onnx", "allowed: a path that stays in the bundle"},
    {"/engines/0/graph", "engines\\embed.onnx", "allowed: a path that stays in the bundle"},
    {"/engines/0/graph", std::string("engines\0", 8), "allowed: a path that stays in the bundle"},
    {"/engines/0/graph", "", "allowed: a path that stays in the bundle"},
    {"/engines/0/graph", "other.onnx", "engine embed: names other.onnx, not listed in files"},
    {"/engines/1/weights/0", "other", "engine layer_000: names other, not listed in files"},
    {"/engines/1/step_bytes", -1, "engines.1.step_bytes: is -1"},
    {"/engines/1/inputs/0/dtype", "float16", "hidden_states is float16; expected float32"},
    {"/engines/1/inputs/0/dtype", "complex64", "engines.1.inputs.0.dtype: is \"complex64\""},
    {"/engines/1/inputs/0/shape/2", 9, "is (a symbol, a symbol, 9); expected"},
    {"/engines/1/inputs/0/shape/2", "E", "hidden_states is (a symbol, a symbol, a symbol)"},
    {"/engines/1/inputs/0/shape/2", 0, "engines.1.inputs.0.shape: is 0"},
    {"/engines/1/inputs/0/shape", {"B", "S"}, "hidden_states is (a symbol, a symbol)"},
    {"/engines/1/inputs/0/role", "logits", "engine layer_000 has the inputs logits"},
    {"/engines/1/inputs/1/role", "past_value", "expected hidden_states, past_key, past_value"},
    {"/engines/1/inputs/1/name", "past_value", "engine layer_000 has the inputs"},
    {"/engines/3/outputs/0/shape/1", 33, "logits is (a symbol, 33); expected (a symbol, 32)"},
    {"/engines/1/buckets", json::array({{{"capacity", 64}, {"graph", "engines/embed.onnx"}}}),
     "engine layer_000 has plans for KV capacities (64); built: ()"},
    {"/engines/1/inputs", json::array(), "engine layer_000 has the inputs none"},
    {"/build", {{"version", "10"}}, "build.compute_capability: is missing"},
    {"/tokenizer", "other.json", "tokenizer: is other.json, not listed in files"},
    {"/tokenizer", "../tokenizer.json", "tokenizer: is \"../tokenizer.json\""},
    {"/prompt_template", "no place", "allowed: a text with {prompt} once"},
    {"/prompt_template", "{prompt}{prompt}", "allowed: a text with {prompt} once"},
    {"/files/0/size", -1, "files.0.size: is -1"},
    {"/files/0/sha256", std::string(64, 'G'), "allowed: 64 hexadecimal digits"},
    {"/files/1/path", "tokenizer.json", "files: lists tokenizer.json twice"},
    {"/source", {{"a", 1}}, "source.a: is 1; allowed: a text"},
    {"/candidates", {{"name", "candidates"}}, "candidates.kind: is missing"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileManifest, testing::ValuesIn(kHostile));

class HostileDrafts : public testing::TestWithParam<Hostile> {};

TEST_P(HostileDrafts, AreRefusedInWordsThatNameThePlace) {
  const Hostile& hostile = GetParam();
  json document = drafted_manifest();
  document[json::json_pointer(hostile.place)] = hostile.value;
  const std::string words = refusal([&] { parsed(document); });
  EXPECT_EQ(words.rfind(kSubject + " | ", 0), 0U) << words;
  EXPECT_NE(words.find(hostile.words), std::string::npos) << words;
}

const std::vector<Hostile> kHostileDrafts{
    {"/draft_layer", 1, "draft_layer"},
    {"/draft_layer/behind", 0, "draft_layer.behind: is 0; allowed: 1 to 4096"},
    {"/draft_layer/behind", 2, "draft_layer is behind 2 layers; allowed: 1 to 1"},
    {"/draft_layer/engine", nullptr, "draft_layer.engine: is missing"},
    {"/draft_layer/engine/name", "layer_001", "expected: layer_draft, a layer without layer_index"},
    {"/draft_layer/engine/layer_index", 1, "expected: layer_draft, a layer without layer_index"},
    {"/draft_layer/engine/graph", "other", "engine layer_draft: names other, not listed in files"},
    {"/draft_layer/engine/inputs/0/dtype", "float16",
     "engine layer_draft: hidden_states is float16"},
    {"/draft_head/tokens", 32, "draft_head has 32 tokens; allowed: fewer than 32"},
    {"/draft_head/tokens", 17,
     "engine head_draft: logits is (a symbol, 16); expected (a symbol, 17)"},
    {"/draft_head/engine/kind", "layer",
     "is engine head_draft, a layer; expected: head_draft, a head"},
    {"/draft_head/engine/weights/0", "engines/embed.weights",
     "draft_head reads engines/embed.weights; allowed: only the head's "
     "weights"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileDrafts, testing::ValuesIn(kHostileDrafts));

TEST(Manifest, IsRefusedIfItIsNoObject) {
  for (const std::string text : {"[]", "3", "null", "{}"})
    EXPECT_NE(refusal([&] { Manifest::parse(text, kSubject); }).find("has format version missing"),
              std::string::npos);
}

TEST(Manifest, IsRefusedIfItWasChangedSinceItWasSealed) {
  std::string text = sealed(hollow_manifest());
  text.replace(text.find("relu"), 4, "gelu");
  EXPECT_NE(refusal([&] { Manifest::parse(text, kSubject); }).find("the file was changed"),
            std::string::npos);
}

}  // namespace
}  // namespace skipdec::runtime
