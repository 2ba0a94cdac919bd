#include "scheduling/decoding.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic_model.h"
#include "errors.h"
#include "scheduling/running_batch.h"

namespace skipdec::runtime {
namespace {

using testing::ArithmeticBackend;
using testing::ArithmeticBundle;
using testing::falling_schedule;

using Known = std::map<std::int64_t, TokenSpan>;  // tokens by request number

// Guesses tokens that are known to follow. Every fifth guess is wrong, and every fourth pass has no
// guesses.
class KnownGuesses : public Decoding {
 public:
  KnownGuesses(Known known, std::int64_t width) : known_(std::move(known)), width_(width) {}

  void feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) override {
    for (std::size_t index = 0; index < rows.size(); ++index) {
      const TokenSpan& known = known_.at(rows[index].number);
      TokenSpan guesses;
      const bool has_guesses = ++passes_ % 4 != 0;
      std::int64_t place = rows[index].sequence->num_tokens();
      for (; has_guesses && static_cast<std::int64_t>(guesses.size()) < width_ - 1; ++place) {
        const auto at = static_cast<std::size_t>(place);
        const std::int64_t token = at < known.size() ? known[at] : 1;
        guesses.push_back(++guessed_ % 5 == 0 ? (token + 1) % testing::kVocabulary : token);
      }
      feed_row(rows[index], guesses, steps[index]);
    }
  }

 private:
  Known known_;
  std::int64_t width_, passes_ = 0, guessed_ = 0;
};

class DecodingTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  std::vector<Request> requests() const {
    std::vector<Request> made;
    for (std::int64_t number = 0; number < 9; ++number) {
      Request request;
      for (std::int64_t token = 0; token <= number % 4; ++token) {
        request.prompt.push_back(5 + number * token);
      }
      request.max_tokens = request.params.max_tokens = 9 + number * 3;
      request.params.temperature = number % 3 == 0 ? 0.8 : 0.0;
      request.params.presence_penalty = number % 2 == 0 ? 0.5 : 0.0;
      request.params.logprobs = 2;
      request.params.seed = 5;
      request.params.ignore_eos = number % 2 == 0;
      request.schedule = bundle_.schedules().resolve(
          number % 3 == 1 ? "full" : falling_schedule(5, 2, 3), request.max_tokens);
      made.push_back(std::move(request));
    }
    return made;
  }

  std::map<std::int64_t, Completion> run(const std::vector<Request>& requests,
                                         std::unique_ptr<Decoding> decoding) {
    RunningBatchConfig config;
    config.max_batch_size = 4;
    config.kv_memory = 1 << 22;
    const Engines engines = Engines::load(bundle_.manifest(), backend_);
    RunningBatch batch(bundle_.manifest(), engines, nullptr, config, std::move(decoding));
    for (std::size_t index = 0; index < requests.size(); ++index) {
      batch.add(static_cast<std::int64_t>(index), requests[index], 0);
    }
    std::map<std::int64_t, std::int64_t> deltas;
    while (batch.is_busy()) {
      for (const Delta& delta : batch.step(0)) deltas[delta.number] += delta.has_token ? 1 : 0;
    }
    std::map<std::int64_t, Completion> ended;
    for (std::size_t index = 0; index < requests.size(); ++index) {
      const auto number = static_cast<std::int64_t>(index);
      ended[number] = batch.take(number).front();
      EXPECT_EQ(deltas[number], static_cast<std::int64_t>(ended[number].token_ids.size()));
    }
    stats_ = batch.stats();
    return ended;
  }

  static Known tokens_of(const std::map<std::int64_t, Completion>& ended) {
    Known known;
    for (const auto& [number, completion] : ended) known[number] = completion.token_ids;
    return known;
  }

  void expect_equal(const std::map<std::int64_t, Completion>& found,
                    const std::map<std::int64_t, Completion>& expected) {
    for (const auto& [number, completion] : expected) {
      const Completion& other = found.at(number);
      EXPECT_EQ(other.token_ids, completion.token_ids) << number;
      EXPECT_EQ(other.layers, completion.layers) << number;
      EXPECT_EQ(other.finish_reason, completion.finish_reason) << number;
      ASSERT_EQ(other.logprobs.size(), completion.logprobs.size()) << number;
      for (std::size_t place = 0; place < other.logprobs.size(); ++place) {
        EXPECT_EQ(other.logprobs[place].logprob, completion.logprobs[place].logprob);
      }
    }
    EXPECT_EQ(stats_.reserved_bytes, 0);
  }

  ArithmeticBundle bundle_;
  ArithmeticBackend backend_;
  EngineStats stats_{};
};

TEST_P(DecodingTest, GuessesChangeNoTextAndSaveSteps) {
  const auto expected = run(requests(), nullptr);
  const EngineStats ordinary = stats_;
  const auto found =
      run(requests(), std::make_unique<KnownGuesses>(tokens_of(expected), GetParam()));
  expect_equal(found, expected);
  EXPECT_EQ(stats_.generated_tokens, ordinary.generated_tokens);
  EXPECT_LT(stats_.steps, ordinary.steps);
}

TEST_P(DecodingTest, ATextEndsAtAStopTokenWithinAPass) {
  std::vector<Request> asked = requests();
  const auto whole = run(asked, nullptr);
  for (std::size_t index = 0; index < asked.size(); ++index) {
    const TokenSpan& tokens = whole.at(static_cast<std::int64_t>(index)).token_ids;
    asked[index].params.stop_token_ids = {tokens[tokens.size() / 2]};
  }
  const auto expected = run(asked, nullptr);
  // The guesses go on beyond the stop token.
  expect_equal(run(asked, std::make_unique<KnownGuesses>(tokens_of(whole), GetParam())), expected);
}

INSTANTIATE_TEST_SUITE_P(Widths, DecodingTest, ::testing::Values(2, 3, 8));

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

TEST_F(TruncationTest, ARowGoesBackToWhereItLastLeftALayer) {
  stitcher_.step({row(3, {8, 9, 10})});
  stitcher_.truncate(0, 4);
  stitcher_.step({row(4, {8, 9, 10, 11})});  // the last token runs one layer fewer
  stitcher_.step({row(8, {5})});             // here the row leaves that layer
  EXPECT_THROW(stitcher_.truncate(0, 7), Error);
  EXPECT_THROW(stitcher_.truncate(0, 10), Error);
  stitcher_.truncate(0, 8);
}

TEST_F(TruncationTest, TokensThatCannotBeFedAreRefused) {
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
