// Tests which manifests are accepted, and which are refused before their contents are used.

#include "bundle/manifest.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "hollow_bundle.h"
#include "refusals.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

const std::string kManifestFile = "bundles/hollow/manifest.json";

Manifest parsed_manifest(const json& document) {
  return Manifest::parse(sealed(document), kManifestFile);
}

TEST(Manifest, IsReadAsItIsWritten) {
  const Manifest manifest = parsed_manifest(hollow_manifest());
  EXPECT_EQ(manifest.target, "onnxruntime");
  EXPECT_EQ(manifest.model.num_kv_heads, 4);
  EXPECT_EQ(manifest.model.head_dim, 2);
  EXPECT_EQ(manifest.model.eos_token_id, 2);
  EXPECT_FALSE(manifest.uses_skipdec_kernels);
  EXPECT_TRUE(manifest.is_tuned);
  EXPECT_EQ(manifest.kv_width, 2);
  EXPECT_EQ(manifest.tokenizer, "tokenizer.json");
  EXPECT_EQ(manifest.files.size(), 9U);
  ASSERT_EQ(manifest.layers.size(), 2U);
  const EngineSpec& layer = manifest.layers[1];
  EXPECT_EQ(layer.find(Role::kPastKey)->shape, (std::vector<std::int64_t>{-1, 4, -1, 2}));
  EXPECT_EQ(layer.find(Role::kLogits), nullptr);
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

TEST(Manifest, DistinguishesBlocksOfTheKernelsFromThoseOfOnnxRuntime) {
  json document = block_manifest();
  EXPECT_TRUE(parsed_manifest(document).foreign_products.empty());
  for (const json& change : {json{{"block_size", 16}}, json{{"accuracy_level", 0}}}) {
    json changed = document;
    changed["precision"].update(change);
    EXPECT_EQ(parsed_manifest(changed).foreign_products, (std::vector<std::string>{"int8-block"}))
        << change;
  }
}

TEST(Manifest, TellsWhetherTheModelWasTrainedToExitEarly) {
  json document = hollow_manifest();
  EXPECT_FALSE(parsed_manifest(document).exits_early);
  document["source"]["tuned_schedule"] = "placement=bottom";
  EXPECT_TRUE(parsed_manifest(document).exits_early);
  document["source"] = json::object();
  EXPECT_FALSE(parsed_manifest(document).is_tuned);
}

TEST(Manifest, MayHaveEnginesOfDrafts) {
  EXPECT_FALSE(parsed_manifest(hollow_manifest()).trained_draft.has_value());
  EXPECT_FALSE(parsed_manifest(hollow_manifest()).draft_head.has_value());
  const Manifest manifest = parsed_manifest(drafted_manifest());
  ASSERT_TRUE(manifest.trained_draft.has_value());
  EXPECT_EQ(manifest.trained_draft->reads, (std::vector<std::int64_t>{1, 1, 2}));
  EXPECT_EQ(manifest.trained_draft->token_ids.size(), 8U);
  EXPECT_EQ(manifest.trained_draft->layer.weights, manifest.layers[1].weights);
  ASSERT_TRUE(manifest.draft_head.has_value());
  EXPECT_EQ(manifest.draft_head->tokens, 16);
  EXPECT_EQ(manifest.draft_head->engine.find(Role::kLogits)->shape[1], 16);
}

TEST(Manifest, IgnoresUnknownFields) {
  json document = hollow_manifest();
  document["surprise"] = 1;
  document["precision"]["other"] = 1;
  document["engines"][1]["inputs"][0]["other"] = "a";
  EXPECT_EQ(parsed_manifest(document).layers.size(), 2U);
}

TEST(Manifest, GivesTheTypeAndWidthOfCaches) {
  json document = hollow_manifest();
  document["kernels"] = "skipdec";
  document["precision"]["dtype"] = "bfloat16";
  document["precision"]["kv_dtype"] = "int8";
  for (json& engine : document["engines"])
    for (const char* direction : {"inputs", "outputs"})
      for (json& tensor : engine[direction])
        if (tensor["shape"].size() == 4) tensor["dtype"] = "int8", tensor["shape"][3] = 6;
  const Manifest manifest = parsed_manifest(document);
  EXPECT_TRUE(manifest.uses_skipdec_kernels);
  EXPECT_EQ(manifest.hidden_dtype, DType::kFloat32);
  EXPECT_EQ(manifest.kv_dtype, DType::kInt8);
  EXPECT_EQ(manifest.kv_width, 6);
}

// parity/test_readers.py tests the other manifests that both runtimes refuse.
TEST(Manifest, RefusesTypesWithoutKernelsAndBucketsWithoutABuild) {
  const json buckets = {{{"capacity", 64}, {"graph", "engines/embed.onnx"}}};
  const std::vector<std::pair<json, std::string>> wrong{
      {{{"precision", {{"kv_dtype", "float16"}}}}, "kv_dtype: is float16 without kernels"},
      {{{"precision", {{"table_dtype", "float16"}}}}, "table_dtype: is float16; allowed with the"},
  };
  for (const auto& [change, words] : wrong) {
    json document = hollow_manifest();
    document.merge_patch(change);
    EXPECT_NE(refusal([&] { parsed_manifest(document); }).find(words), std::string::npos) << change;
  }
  json document = hollow_manifest();
  document["engines"][1]["buckets"] = buckets;
  EXPECT_NE(refusal([&] { parsed_manifest(document); }).find("KV capacities (64); built: ()"),
            std::string::npos);
}

TEST(Manifest, IsRefusedWithoutAFormatVersion) {
  for (const std::string text : {"[]", "3", "null", "{}"})
    EXPECT_NE(
        refusal([&] { Manifest::parse(text, kManifestFile); }).find("has format version missing"),
        std::string::npos);
}

}  // namespace
}  // namespace skipdec::runtime
