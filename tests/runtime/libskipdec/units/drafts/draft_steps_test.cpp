// Tests which rows the head scores in draft steps and in the passes after them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "arithmetic_model.h"
#include "stitching/slot_stitcher.h"

namespace skipdec::runtime {
namespace {

using support::ArithmeticBackend;
using support::ArithmeticBundle;

using Places = std::vector<std::size_t>;

// Runs three rows, with a narrow head or without; the second bypasses layer 1 by its schedule.
class DraftStepsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) engines_.load_draft_head(bundle_, backend_);
    stitcher_.emplace(engines_, bundle_.manifest(), Limits{3, 64, 1 << 22}, false);
    for (std::int64_t row = 0; row < 3; ++row) {
      PromptRow prompt;
      prompt.row = row;
      prompt.tokens = {5, 6 + row, 7};
      prompt.schedule = row == 1 ? falling_ : full_;
      prompt.reservation = reservation_of(*prompt.schedule, 3, 40);
      stitcher_->prefill({&prompt});
      rows_.push_back({row, {5 + row}, 3, {&prompt.schedule->plan(0)}});
    }
  }

  // Returns the logits of the rows that draft, one vector each.
  std::vector<std::vector<float>> drafted(const Places& drafting) {
    std::vector<std::vector<float>> logits;
    for (const float* const each : stitcher_->draft(rows_, drafting, plan_)) {
      logits.emplace_back(each, each + stitcher_->num_draft_logits());
    }
    return logits;
  }

  ArithmeticBundle bundle_;
  ArithmeticBackend backend_;
  Engines engines_ = Engines::load(bundle_.manifest(), backend_);
  SchedulePointer full_ = bundle_.schedules().resolve("full", 40);
  SchedulePointer falling_ = bundle_.schedules().resolve(support::falling_schedule(5, 2, 8), 40);
  LayerPlan plan_{0, 1, 5};
  std::optional<SlotStitcher> stitcher_;
  std::vector<StepRow> rows_;
};

INSTANTIATE_TEST_SUITE_P(Heads, DraftStepsTest, ::testing::Bool());

TEST_P(DraftStepsTest, TheHeadScoresOnlyTheRowsThatDraft) {
  std::int64_t before = backend_.rows_scored();
  const auto both = drafted({0, 2});
  EXPECT_EQ(backend_.rows_scored() - before, 2);
  before = backend_.rows_scored();
  const auto last = drafted({2});
  EXPECT_EQ(backend_.rows_scored() - before, 1);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0], both[1]);
  EXPECT_NE(last[0], both[0]);
  EXPECT_EQ(drafted({2, 0}), (std::vector{both[1], both[0]}));
}

TEST_P(DraftStepsTest, APassAfterADraftScoresAllRows) {
  const std::vector<const float*> logits = stitcher_->step(rows_);
  const std::vector<float> expected(logits[2], logits[2] + support::kVocabulary);
  for (std::int64_t row = 0; row < 3; ++row) stitcher_->truncate(row, 3);
  drafted({2});
  const std::int64_t before = backend_.rows_scored();
  const std::vector<const float*>& again = stitcher_->step(rows_);
  EXPECT_EQ(backend_.rows_scored() - before, 3);
  EXPECT_EQ(std::vector<float>(again[2], again[2] + support::kVocabulary), expected);
}

}  // namespace
}  // namespace skipdec::runtime
