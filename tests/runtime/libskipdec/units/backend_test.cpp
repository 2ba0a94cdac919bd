// Tests that bundles without a backend are refused before ONNX Runtime is looked for.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "hollow_bundle.h"
#include "refusals.h"
#include "sessions/onnxruntime/copied_weights.h"
#include "sessions/session.h"

namespace skipdec::runtime {
namespace {

std::string manifest_refusal(const nlohmann::json& manifest, const SessionOptions& options = {}) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "refused_backend";
  std::filesystem::remove_all(folder);
  write_hollow_bundle(folder);
  write_file(folder / "manifest.json", sealed(manifest));
  const auto bundle = Bundle::open(folder.string(), Verify::kGraphs);
  std::filesystem::remove_all(folder);
  return refusal([&] { Backend::open(bundle, options); });
}

TEST(Backend, NamesTheTargetsThatItDoesNotRun) {
  nlohmann::json manifest = hollow_manifest();
  manifest["target"] = "tensorrt";
  EXPECT_NE(manifest_refusal(manifest).find("run it by skipdec's Python runtime"),
            std::string::npos);
  manifest["target"] = "abacus";
  EXPECT_NE(manifest_refusal(manifest).find("is for the target abacus; allowed: onnxruntime"),
            std::string::npos);
}

TEST(Backend, RefusesActivationsInBfloat16) {
  nlohmann::json manifest = hollow_manifest();
  manifest["precision"]["dtype"] = "bfloat16";
  for (nlohmann::json& engine : manifest["engines"])
    for (const char* direction : {"inputs", "outputs"})
      for (nlohmann::json& tensor : engine[direction])
        if (tensor["dtype"] == "float32" && tensor["role"] != "logits")
          tensor["dtype"] = "bfloat16";
  EXPECT_NE(manifest_refusal(manifest).find("computes in bfloat16"), std::string::npos);
}

TEST(Backend, RefusesAnInstructionSetThatCannotRunHere) {
  ::setenv("SKIPDEC_INSTRUCTION_SET", "abacus", 1);
  const std::string words = manifest_refusal(hollow_manifest());
  ::unsetenv("SKIPDEC_INSTRUCTION_SET");
  EXPECT_EQ(words.rfind("SKIPDEC_INSTRUCTION_SET | names what can't run here", 0), 0U) << words;
}

TEST(Backend, RefusesToCopyWeightsWithoutKernels) {
  SessionOptions options;
  options.weights = WeightsPlace::kCopied;
  EXPECT_NE(manifest_refusal(hollow_manifest(), options).find("weights | are to be copied"),
            std::string::npos);
}

TEST(Backend, ReportsThatACopyOfWeightsExceedsMemory) {
  constexpr std::size_t kBytes = std::size_t{1} << 60;  // more than any machine has
  try {
    const onnxruntime::HugePages pages(kBytes);
    FAIL() << "2**60 bytes were mapped";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kMemory);
  }
}

}  // namespace
}  // namespace skipdec::runtime
