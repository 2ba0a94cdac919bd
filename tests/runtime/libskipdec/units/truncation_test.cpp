#include <gtest/gtest.h>

#include "arithmetic_model.h"
#include "errors.h"
#include "stitching/slot_stitcher.h"

namespace skipdec::runtime {
namespace {

using support::ArithmeticBackend;
using support::ArithmeticBundle;
using support::falling_schedule;

class TruncationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    prompt_.tokens = {5, 6, 7};
    prompt_.schedule = bundle_.schedules().resolve(falling_schedule(5, 2, 4), 20);
    prompt_.reservation = reservation_of(*prompt_.schedule, 3, 20);
    stitcher_.prefill({&prompt_});
  }

  StepRow row(std::int64_t position, const TokenSpan& tokens) const {
    StepRow made;
    made.tokens = tokens;
    made.position = position;
    for (std::size_t offset = 0; offset < tokens.size(); ++offset) {
      made.plans.push_back(
          &prompt_.schedule->plan(position - 3 + static_cast<std::int64_t>(offset)));
    }
    return made;
  }

  ArithmeticBundle bundle_;
  ArithmeticBackend backend_;
  Engines engines_ = Engines::load(bundle_.manifest(), backend_);
  SlotStitcher stitcher_{engines_, bundle_.manifest(), {2, 64, 1 << 22}, false};
  PromptRow prompt_;
};

TEST_F(TruncationTest, ARowIsNotTruncatedToBeforeItLeftALayer) {
  stitcher_.step({row(3, {8, 9, 10})});
  stitcher_.truncate(0, 4);
  stitcher_.step({row(4, {8, 9, 10, 11})});  // the last token runs one layer fewer
  stitcher_.step({row(8, {5})});             // here the row leaves that layer
  EXPECT_THROW(stitcher_.truncate(0, 7), Error);
  EXPECT_THROW(stitcher_.truncate(0, 10), Error);
  stitcher_.truncate(0, 8);
}

TEST_F(TruncationTest, InvalidStepsAreRefused) {
  StepRow mixed = row(3, {8, 9});
  mixed.plans.pop_back();
  EXPECT_THROW(stitcher_.step({mixed}), Error);
  mixed = row(3, {8, 9});
  mixed.plans.front() = &prompt_.schedule->plan(15);
  EXPECT_THROW(stitcher_.step({mixed}), Error);
  EXPECT_THROW(stitcher_.step({row(21, {8, 9})}), Error);
  stitcher_.step({row(3, {8, 9})});
}

}  // namespace
}  // namespace skipdec::runtime
