// Tests that intact bundles open, and that errors name the damage of others.

#include "bundle/bundle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "hollow_bundle.h"
#include "refusals.h"

namespace skipdec::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLimit = 1024;  // bytes of a file that is read

class BundleOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("bundle_") + test->name());
    fs::remove_all(folder_);
    write_hollow_bundle(path());
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path path() const { return folder_ / "hollow"; }

  std::shared_ptr<const Bundle> opened(Verify verify = Verify::kFull) const {
    return Bundle::open(path().string(), verify);
  }

  // Expects that opening the bundle fails with an error that names it and contains ``expected``.
  void expect_refused(const std::string& expected) const {
    const std::string words = refusal([&] { opened()->await_weights(); });
    EXPECT_EQ(words.rfind(fs::canonical(folder_).string() + "/hollow", 0), 0U) << words;
    EXPECT_NE(words.find(expected), std::string::npos) << words;
  }

  fs::path folder_;
};

TEST_F(BundleOnDisk, IsOpenedIfItIsIntact) {
  const auto bundle = opened();
  bundle->await_weights();
  bundle->await_weights();
  EXPECT_EQ(bundle->path(), fs::canonical(path()).string());
  EXPECT_EQ(bundle->manifest().model.name, "hollow");
  EXPECT_EQ(bundle->schedules().own()->text(), "full");
  EXPECT_EQ(bundle->read("engines/head.onnx", kLimit), "engines/head.onnx");
  EXPECT_NE(refusal([&] { bundle->locate("other"); }).find("lists no file other"),
            std::string::npos);
}

TEST_F(BundleOnDisk, IsStillReadAfterItsDirectoryMoved) {
  const auto bundle = opened();
  fs::rename(path(), folder_ / "elsewhere");
  fs::create_directories(path());
  EXPECT_EQ(bundle->read("tokenizer.json", kLimit), "tokenizer.json");
  EXPECT_TRUE(fs::is_regular_file(bundle->locate("engines/head.onnx")));
}

TEST_F(BundleOnDisk, IsRefusedWithAFileOfAnotherSize) {
  write_file(path() / "engines/embed.weights", "short");
  expect_refused("engines/embed.weights: has 5 bytes; expected 21");
}

TEST_F(BundleOnDisk, IsRefusedWithAChangedGraph) {
  write_file(path() / "engines/embed.onnx", "engines/embed.onnX");
  expect_refused("engines/embed.onnx: has SHA-256 ");
  EXPECT_NE(refusal([&] { opened(Verify::kGraphs); }), "");
}

TEST_F(BundleOnDisk, IsRefusedWithChangedWeightsIfTheyAreHashed) {
  write_file(path() / "engines/embed.weights", "engines/embed.weightS");
  opened(Verify::kGraphs)->await_weights();
  const auto bundle = opened();
  EXPECT_NE(refusal([&] { bundle->await_weights(); }).find("engines/embed.weights: has SHA-256"),
            std::string::npos);
}

TEST_F(BundleOnDisk, HashesItsDraftLayerOnRequest) {
  write_hollow_bundle(path(), drafted_manifest(true));
  const auto whole = opened();
  whole->await_weights();
  whole->check_weights(whole->manifest().trained_draft->layer);
  write_file(path() / "engines/layer_draft.weights", "engines/layer_draft.weightS");
  const auto bundle = opened();
  bundle->await_weights();  // hashes only the engines that every text runs
  const EngineSpec& draft = bundle->manifest().trained_draft->layer;
  EXPECT_NE(refusal([&] {
              bundle->check_weights(draft);
            }).find("engines/layer_draft.weights: has SHA-256"),
            std::string::npos);
  opened(Verify::kGraphs)->check_weights(draft);
}

TEST_F(BundleOnDisk, ReportsEveryDamagedFile) {
  fs::remove(path() / "tokenizer.json");
  fs::remove(path() / "engines/embed.onnx");
  expect_refused("3 problems:\n  - tokenizer.json: is missing\n  - engines/embed.onnx: is missing");
}

TEST_F(BundleOnDisk, IsRefusedWithALinkThatLeavesIt) {
  write_file(folder_ / "outside", "tokenizer.json");
  fs::remove(path() / "tokenizer.json");
  fs::create_symlink("../outside", path() / "tokenizer.json");
  expect_refused("tokenizer.json: is a link to ");
}

TEST_F(BundleOnDisk, MayHaveALinkThatStaysInside) {
  fs::rename(path() / "tokenizer.json", path() / "other");
  fs::create_symlink("other", path() / "tokenizer.json");
  EXPECT_EQ(opened()->read("tokenizer.json", kLimit), "tokenizer.json");
}

TEST_F(BundleOnDisk, IsRefusedWithAPipeForAFile) {
  fs::remove(path() / "tokenizer.json");
  ASSERT_EQ(::mkfifo((path() / "tokenizer.json").c_str(), 0600), 0);
  expect_refused("tokenizer.json: can't be read (is a pipe; expected a regular file)");
}

TEST_F(BundleOnDisk, IsRefusedWithADirectoryForASchedule) {
  fs::remove(path() / "schedule.json");
  fs::create_directory(path() / "schedule.json");
  expect_refused("schedule.json | can't be read (is a directory; expected a regular file); write");
}

TEST_F(BundleOnDisk, IsRefusedWithAManifestAboveTheLimit) {
  fs::resize_file(path() / "manifest.json", (16 << 20) + 1);
  expect_refused("manifest.json | is larger than 16,777,216 bytes, the limit");
}

TEST_F(BundleOnDisk, RefusesToReadAFileThatChanged) {
  const auto bundle = opened();
  write_file(path() / "tokenizer.json", "tokenizer.jsoN");
  EXPECT_NE(
      refusal([&] { bundle->read("tokenizer.json", kLimit); }).find("is not the file that was"),
      std::string::npos);
}

TEST_F(BundleOnDisk, RefusesToReadAFileAboveTheGivenLimit) {
  const auto bundle = opened();
  EXPECT_EQ(bundle->read("tokenizer.json", 14), "tokenizer.json");
  EXPECT_NE(refusal([&] { bundle->read("tokenizer.json", 13); }).find("larger than 13 bytes, the"),
            std::string::npos);
}

TEST_F(BundleOnDisk, IsMissingAndTheErrorSaysWhatLiesInItsPlace) {
  fs::rename(path(), folder_ / ".hollow.partial");
  expect_refused("is an unfinished export (.hollow.partial); run the export command again");
  fs::rename(folder_ / ".hollow.partial", folder_ / ".hollow.old");
  expect_refused("was being replaced when its writer was stopped; put it back by: skipdec inspect");
  fs::remove_all(folder_ / ".hollow.old");
  expect_refused("does not exist; allowed: a directory made by 'skipdec export'");
  write_file(path(), "");
  expect_refused("is not a directory; allowed: one made by 'skipdec export'");
  fs::remove(path());
  fs::create_directories(path());
  expect_refused("is not a bundle: it has no manifest.json");
  write_file(path() / "config.json", "{}");
  expect_refused("is a checkpoint, not a bundle; run: skipdec export ");
}

TEST_F(BundleOnDisk, IsReportedMissingFromADeletedDirectory) {
  const fs::path before = fs::current_path(), deleted = folder_ / "deleted";
  fs::create_directories(deleted);
  fs::current_path(deleted);
  fs::remove(deleted);
  std::string words;
  EXPECT_NO_THROW(words = refusal([] { Bundle::open("somewhere", Verify::kGraphs); }));
  fs::current_path(before);
  EXPECT_NE(words.find("somewhere | does not exist"), std::string::npos) << words;
}

}  // namespace
}  // namespace skipdec::runtime
