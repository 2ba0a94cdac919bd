#include "scheduling/running_batch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic_model.h"

namespace skipdec::runtime {
namespace {

using support::ArithmeticBackend;
using support::ArithmeticBundle;
using support::falling_schedule;
using support::kShortMemory;

// Runs requests of a test in a batch of the arithmetic model.
class RunningBatchTest : public ::testing::Test {
 protected:
  void make(std::int64_t max_batch_size, std::int64_t kv_memory = 1 << 22,
            std::int64_t max_prefill_tokens = 2048, bool prefix_cache = true,
            std::int64_t failing_call = 0, std::int64_t num_failing = 1) {
    backend_ = std::make_unique<ArithmeticBackend>(failing_call, num_failing);
    engines_ = Engines::load(bundle_.manifest(), *backend_);
    RunningBatchConfig config;
    config.max_batch_size = max_batch_size;
    config.kv_memory = kv_memory;
    config.max_prefill_tokens = max_prefill_tokens;
    config.prefix_cache = prefix_cache ? PrefixSharing::kShared : PrefixSharing::kOff;
    batch_ = std::make_unique<RunningBatch>(bundle_.manifest(), engines_, nullptr, config);
  }

  Request request(TokenSpan prompt, std::int64_t max_tokens, const std::string& schedule = "full",
                  std::int64_t n = 1) const {
    Request made;
    made.prompt = std::move(prompt);
    made.max_tokens = made.params.max_tokens = max_tokens;
    made.params.temperature = n > 1 ? 0.7 : 0.0;
    made.params.n = n;
    made.params.seed = 5;
    made.params.ignore_eos = true;
    made.schedule = bundle_.schedules().resolve(schedule, max_tokens);
    return made;
  }

  // Steps until all requests have ended and returns their completions.
  std::map<std::int64_t, std::vector<Completion>> run() {
    std::map<std::int64_t, std::vector<Completion>> ended;
    while (batch_->is_busy()) {
      for (const Delta& delta : std::vector<Delta>(batch_->step(0))) {
        if (delta.finish_reason && ended.count(delta.number) == 0 &&
            batch_->has_ended(delta.number)) {
          ended[delta.number] = batch_->take(delta.number);
        }
      }
    }
    return ended;
  }

  // Returns a request's completions in a batch of its own.
  std::vector<Completion> alone(const Request& submitted) {
    make(static_cast<std::int64_t>(submitted.params.n), 1 << 22, 2048, false);
    batch_->add(0, submitted, 0);
    return run().at(0);
  }

  ArithmeticBundle bundle_;
  std::unique_ptr<ArithmeticBackend> backend_;
  Engines engines_;
  std::unique_ptr<RunningBatch> batch_;
};

TEST_F(RunningBatchTest, BypassedLayersChangeTheTokens) {
  EXPECT_NE(alone(request({5, 6, 7}, 12))[0].token_ids,
            alone(request({5, 6, 7}, 12, falling_schedule(4, 2, 1)))[0].token_ids);
}

TEST_F(RunningBatchTest, APromptRunsOnlyTheTokensAfterItsCachedPrefix) {
  TokenSpan prompt;
  for (std::int64_t token = 0; token < 40; ++token) prompt.push_back(token);
  const std::vector<Completion> expected = alone(request(prompt, 4));
  make(4);
  for (const std::int64_t number : {0, 1}) {
    batch_->add(number, request(prompt, 4), 0);
    EXPECT_EQ(run().at(number)[0].token_ids, expected[0].token_ids);
  }
  EXPECT_EQ(batch_->stats().prefix_tokens, 32);
}

TEST_F(RunningBatchTest, ThePrefixOfAWaitingRequestCountsAsUsed) {
  const auto prompt = [](std::int64_t token) { return TokenSpan(40, token); };
  make(1, 32 * 4096);  // prefixes of four prompts take a quarter
  for (std::int64_t number = 0; number < 4; ++number) {
    batch_->add(number, request(prompt(number), 4), 0);
  }
  run();
  ASSERT_EQ(batch_->stats().prefix_bytes, 8 * 4096);
  batch_->set_admits(false);
  batch_->add(4, request(prompt(0), 4), 0);
  batch_->step(0);
  batch_->abort(4, "cancelled");
  batch_->set_admits(true);
  batch_->add(5, request(prompt(9), 4), 0);
  batch_->add(6, request(prompt(0), 4), 0);
  run();
  EXPECT_EQ(batch_->stats().prefix_tokens, 32);
}

TEST_F(RunningBatchTest, AFailedStepEndsRunningRequestsAndWaitingOnesRun) {
  make(2, 1 << 22, 2048, false, 10);  // fails in the second step
  for (const std::int64_t number : {0, 1, 2}) batch_->add(number, request({4, 5}, 4), 0);
  const auto ended = run();
  EXPECT_EQ(ended.at(0)[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(ended.at(1)[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(ended.at(2)[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(ended.at(2)[0].token_ids, alone(request({4, 5}, 4))[0].token_ids);
}

TEST_F(RunningBatchTest, TheThirdFailureInARowIsThrownDespiteIdleSteps) {
  make(2, 1 << 22, 2048, false, 1, 1 << 20);
  for (const std::int64_t number : {0, 1}) {
    batch_->add(number, request({4, 5}, 4), 0);
    EXPECT_EQ(run().at(number)[0].finish_reason, FinishReason::kError);
    EXPECT_TRUE(batch_->step(0).empty());
  }
  batch_->add(2, request({4, 5}, 4), 0);
  EXPECT_THROW(batch_->step(0), Error);
}

// `reset` frees the chunks of a prompt that has partly run, so the prompt cannot go on.
TEST_F(RunningBatchTest, AFailedStepEndsAPromptThatHasPartlyRun) {
  // A call for prompt 0, a step, the first chunk of prompt 1, and a step that fails.
  make(2, 1 << 22, 16, false, 3 * support::kLayers + 1);
  batch_->add(0, request({4, 5}, 8), 0);
  batch_->add(1, request(TokenSpan(40, 7), 4), 0);
  while (!batch_->has_ended(0)) batch_->step(0);
  EXPECT_TRUE(batch_->has_ended(1));
  EXPECT_FALSE(batch_->is_busy());
  EXPECT_EQ(batch_->stats().failed, 2);
  EXPECT_EQ(batch_->stats().reserved_bytes, 0);
}

TEST_F(RunningBatchTest, APromptWhoseCachedPrefixWasEvictedRunsInChunksFromItsStart) {
  const Request submitted = request(TokenSpan(56, 7), 4, "full", 16);
  const auto holds = [&](std::int64_t kv_memory) {
    make(16, kv_memory, 16);
    try {
      batch_->require_possible(submitted);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  std::int64_t kv_memory = 4096;
  while (!holds(kv_memory)) ASSERT_LT(kv_memory += 4096, 1 << 22);
  batch_->add(0, request(TokenSpan(40, 7), 4), 0);
  run();
  ASSERT_GT(batch_->stats().prefix_bytes, 0);
  batch_->add(1, submitted, 0);
  int calls = 0;
  for (; batch_->stats().running == 0; ++calls) batch_->step(0);
  EXPECT_EQ(batch_->stats().prefix_tokens, 0);
  EXPECT_EQ(calls, 4);
}

TEST_F(RunningBatchTest, ARowThatFailsCountsNoToken) {
  make(2);
  Request submitted = request({4, 5}, 4);
  submitted.params.min_tokens = 4;
  for (std::int64_t token = 0; token < support::kVocabulary; ++token) {
    submitted.params.stop_token_ids.push_back(token);  // so that no token can be drawn
  }
  batch_->add(0, submitted, 0);
  EXPECT_EQ(run().at(0)[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(batch_->stats().generated_tokens, 0);
}

TEST_F(RunningBatchTest, RequestsThatCanNeverRunAreRefused) {
  make(2, kShortMemory / 2);
  EXPECT_THROW(batch_->require_possible(request({1}, 2, "full", 3)), Error);
  EXPECT_THROW(batch_->require_possible(request(TokenSpan(40, 5), 25)), Error);
  EXPECT_THROW(make(0), Error);
  EXPECT_THROW(make(2, 1 << 22, 15), Error);
}

TEST_F(RunningBatchTest, AWaitingRequestBeginsOnceRequestsAreAdmittedAgain) {
  make(2);
  batch_->add(0, request({4, 5}, 4), 0);
  batch_->step(0);
  batch_->add(1, request({4, 5}, 4), 0);
  batch_->set_admits(false);
  for (int call = 0; call < 8; ++call) batch_->step(0);
  EXPECT_TRUE(batch_->has_ended(0));
  EXPECT_EQ(batch_->stats().running, 0);
  EXPECT_EQ(batch_->stats().waiting, 1);
  batch_->set_admits(true);
  EXPECT_EQ(run().at(1)[0].finish_reason, FinishReason::kLength);
}

TEST_F(RunningBatchTest, AScoredTextHasTheSameDepthAsAGeneratedOne) {
  const Request submitted = request({5, 6, 7}, 5, falling_schedule(5, 2, 1));
  const std::vector<Completion> made = alone(submitted);
  const ScoreRequest text{submitted.prompt, made[0].token_ids, submitted.schedule};
  make(2);
  const ScoreResult result = batch_->score(text);
  EXPECT_EQ(result.layers, made[0].layers);
  ASSERT_EQ(result.logprobs.size(), 5U);
  // Each token is the most probable of 97, whose logits are 0/16 … 96/16.
  for (const double logprob : result.logprobs) EXPECT_NEAR(logprob, -2.803, 0.01);
}

TEST_F(RunningBatchTest, AScoredTextThatFailsIsCountedAndTimed) {
  make(2, 1 << 22, 2048, false, 1);
  const ScoreRequest text{{5, 6}, {7, 8}, bundle_.schedules().own()};
  EXPECT_THROW(batch_->score(text), Error);
  EXPECT_EQ(batch_->stats().failed, 1);
  EXPECT_GT(batch_->stats().scoring_seconds, 0);
  EXPECT_EQ(batch_->score(text).logprobs.size(), 2U);
  EXPECT_EQ(batch_->stats().finished, 1);
  EXPECT_EQ(batch_->stats().submitted, 2);
}

}  // namespace
}  // namespace skipdec::runtime
