// Tests that engines of drafts are loaded on request, and only where a bundle has them.

#include "stitching/engines.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "hollow_bundle.h"
#include "refusals.h"

namespace skipdec::runtime {
namespace {

namespace fs = std::filesystem;

class NamedSession final : public Session {
 public:
  explicit NamedSession(EngineSpec spec) : spec_(std::move(spec)) {}
  const EngineSpec& spec() const override { return spec_; }
  std::unique_ptr<Binding> bind(const std::vector<BoundTensor>& /*tensors*/) override {
    return nullptr;
  }

 private:
  EngineSpec spec_;
};

class ListingBackend final : public Backend {
 public:
  std::unique_ptr<Session> load(const EngineSpec& spec) override {
    names.push_back(spec.name);
    return std::make_unique<NamedSession>(spec);
  }
  std::string description() const override { return "lists names"; }

  std::vector<std::string> names;
};

class EnginesOfDrafts : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::shared_ptr<const Bundle> opened(const nlohmann::json& manifest) const {
    write_hollow_bundle(folder_, manifest);
    return Bundle::open(folder_.string(), Verify::kFull);
  }

  fs::path folder_ = fs::path(testing::TempDir()) / "engines_of_drafts";
};

TEST_F(EnginesOfDrafts, AreLoadedOnRequest) {
  const auto bundle = opened(drafted_manifest(true));
  ListingBackend backend;
  Engines engines = Engines::load(bundle->manifest(), backend);
  EXPECT_EQ(backend.names, (std::vector<std::string>{"embed", "head", "layer_000", "layer_001"}));
  EXPECT_EQ(engines.draft_layer, nullptr);
  engines.load_trained_drafts(*bundle, backend);
  engines.load_draft_head(*bundle, backend);
  EXPECT_EQ(backend.names.size(), 9U);
  EXPECT_EQ(engines.reads, (std::vector<std::int64_t>{1, 1, 2}));
  ASSERT_NE(engines.draft_layer, nullptr);
  EXPECT_EQ(engines.draft_layer->spec().name, "layer_draft");
  ASSERT_NE(engines.draft_head, nullptr);
  EXPECT_EQ(engines.draft_head->spec().name, "head_draft");
}

TEST_F(EnginesOfDrafts, AreNotLoadedIfABundleHasNone) {
  const auto bundle = opened(hollow_manifest());
  ListingBackend backend;
  Engines engines = Engines::load(bundle->manifest(), backend);
  engines.load_trained_drafts(*bundle, backend);
  engines.load_draft_head(*bundle, backend);
  EXPECT_EQ(engines.draft_layer, nullptr);
  EXPECT_EQ(engines.draft_head, nullptr);
}

TEST_F(EnginesOfDrafts, AreRefusedIfTheirWeightsAreDamaged) {
  const auto bundle = opened(drafted_manifest(true));
  ListingBackend backend;
  Engines engines = Engines::load(bundle->manifest(), backend);
  write_file(folder_ / "engines/layer_draft.weights", "engines/layer_draft.weightS");
  EXPECT_NE(refusal([&] { engines.load_trained_drafts(*bundle, backend); }).find("has SHA-256"),
            std::string::npos);
  EXPECT_EQ(engines.draft_layer, nullptr);
}

}  // namespace
}  // namespace skipdec::runtime
