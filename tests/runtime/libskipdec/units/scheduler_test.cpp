#include "scheduling/scheduler.h"

#include <gtest/gtest.h>

#include "errors.h"
#include "scheduling/scoring_turns.h"

namespace skipdec::runtime {
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  Scheduler make(std::int64_t slots, std::int64_t max_prefill_tokens,
                 const char* admission = "fcfs") {
    return {
        slots, max_prefill_tokens, Admission::parse(admission),
        [this](const std::vector<Job>& jobs) {
          return static_cast<std::int64_t>(jobs.size()) <= room_;
        },
        [max_prefill_tokens](const Job& job) { return job.prompt_length > max_prefill_tokens; }};
  }

  static std::vector<std::int64_t> prefilled(const Action& action) {
    return std::get<Prefill>(action).numbers;
  }

  std::int64_t room_ = 100;
};

using Numbers = std::vector<std::int64_t>;

TEST_F(SchedulerTest, PromptsOfSimilarLengthShareACallBeforeAStep) {
  Scheduler scheduler = make(8, 64);
  scheduler.add({0, 10});
  scheduler.add({1, 40});
  scheduler.add({2, 12});
  EXPECT_EQ(prefilled(scheduler.next_action(0)), (Numbers{0, 2}));
  EXPECT_TRUE(std::holds_alternative<Decode>(scheduler.next_action(0)));
  EXPECT_EQ(prefilled(scheduler.next_action(0)), (Numbers{1}));
}

TEST_F(SchedulerTest, ALongPromptRunsInChunksWithStepsBetween) {
  Scheduler scheduler = make(2, 16);
  scheduler.add({0, 4});
  scheduler.next_action(0);
  scheduler.add({1, 40});
  for (const bool is_first : {true, false, false}) {
    EXPECT_TRUE(std::holds_alternative<Decode>(scheduler.next_action(0)));
    EXPECT_EQ(std::get<Chunk>(scheduler.next_action(0)).is_first, is_first);
    EXPECT_EQ(scheduler.in_chunks(), 1);
  }
  EXPECT_EQ(scheduler.running_rows(), 1);
  scheduler.prompt_ran();
  EXPECT_EQ(scheduler.running_rows(), 2);
  EXPECT_EQ(scheduler.in_chunks(), std::nullopt);
}

TEST_F(SchedulerTest, NoRequestOvertakesTheFirstThatDoesNotFit) {
  Scheduler scheduler = make(2, 64);
  scheduler.add({0, 4, 1});
  scheduler.next_action(0);
  scheduler.add({1, 4, 2});
  scheduler.add({2, 4, 1});
  EXPECT_TRUE(std::holds_alternative<Decode>(scheduler.next_action(0)));
  EXPECT_TRUE(std::holds_alternative<Decode>(scheduler.next_action(0)));
  scheduler.row_ended(0);
  EXPECT_EQ(prefilled(scheduler.next_action(0)), (Numbers{1}));
}

TEST_F(SchedulerTest, ClientsTakeTurnsAndKeepTheirOwnOrder) {
  Scheduler scheduler = make(4, 32);
  const std::string clients = "aaaabbac";
  for (std::size_t number = 0; number < clients.size(); ++number) {
    scheduler.add({static_cast<std::int64_t>(number), 20}, clients.substr(number, 1));
  }
  scheduler.cancel(3);
  Numbers begun;
  while (scheduler.is_busy()) {
    const Action action = scheduler.next_action(0);
    if (!std::holds_alternative<Prefill>(action)) continue;
    begun.push_back(prefilled(action).front());
    scheduler.row_ended(begun.back());
  }
  EXPECT_EQ(begun, (Numbers{0, 4, 7, 1, 5, 2, 6}));
}

TEST_F(SchedulerTest, AReturningClientQueuesBehindWaitingOnes) {
  Scheduler scheduler = make(4, 32);
  scheduler.add({0, 20}, "a");
  scheduler.add({1, 20}, "b");
  EXPECT_EQ(prefilled(scheduler.next_action(0)), (Numbers{0}));
  scheduler.row_ended(0);
  scheduler.add({2, 20}, "a");
  EXPECT_EQ(prefilled(scheduler.next_action(0)), (Numbers{1}));
}

TEST(ScoringTurnsTest, GenerationRunsAsLongAsTheLastScoredTextTook) {
  ScoringTurns turns;
  const EngineStats before{};
  EngineStats after{};
  EXPECT_TRUE(turns.is_due(before));
  after.scoring_seconds = 2;
  after.steps = 9;
  turns.scored(before, after);
  after.running = 1;
  after.decode_seconds = 1.9;
  after.steps = 11;
  EXPECT_FALSE(turns.is_due(after));
  after.sampling_seconds = 0.2;
  EXPECT_TRUE(turns.is_due(after));
  turns.scored(after, after);
  EXPECT_FALSE(turns.is_due(after));  // running rows get a step first
}

TEST_F(SchedulerTest, MemoryLimitsTheRequestsAdmittedTogether) {
  room_ = 1;
  Scheduler scheduler = make(8, 64);
  scheduler.add({0, 4});
  scheduler.add({1, 4});
  EXPECT_EQ(prefilled(scheduler.next_action(0)), (Numbers{0}));
}

TEST_F(SchedulerTest, AGangIsHeldUntilItIsCompleteOrTimeIsUp) {
  Scheduler scheduler = make(8, 64, "gang:min_free=2,hold_ms=100");
  scheduler.add({0, 4});
  EXPECT_EQ(prefilled(scheduler.next_action(0)), (Numbers{0}));  // no row was running
  scheduler.next_action(0);
  scheduler.add({1, 4});
  EXPECT_TRUE(std::holds_alternative<Decode>(scheduler.next_action(1.00)));
  EXPECT_TRUE(std::holds_alternative<Decode>(scheduler.next_action(1.09)));
  EXPECT_EQ(prefilled(scheduler.next_action(1.11)), (Numbers{1}));
  scheduler.next_action(1.2);
  scheduler.add({2, 4});
  scheduler.add({3, 4});
  EXPECT_EQ(prefilled(scheduler.next_action(1.3)), (Numbers{2, 3}));
}

TEST_F(SchedulerTest, ACancelledRequestIsForgotten) {
  Scheduler scheduler = make(8, 16);
  scheduler.add({0, 40});
  scheduler.next_action(0);
  scheduler.cancel(0);
  EXPECT_FALSE(scheduler.is_busy());
  EXPECT_TRUE(std::holds_alternative<Wait>(scheduler.next_action(0)));
}

class AdmissionTest : public ::testing::TestWithParam<const char*> {};

TEST_P(AdmissionTest, InvalidTextIsRefused) { EXPECT_THROW(Admission::parse(GetParam()), Error); }

INSTANTIATE_TEST_SUITE_P(Texts, AdmissionTest,
                         ::testing::Values("lifo", "gang:min=2", "gang:min_free=x",
                                           "gang:hold_ms=-1", "gang:min_free=", "fcfs:min_free=2",
                                           "gang:hold_ms=1 "));

}  // namespace
}  // namespace skipdec::runtime
