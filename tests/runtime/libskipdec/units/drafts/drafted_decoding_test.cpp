#include "scheduling/drafters/drafted_decoding.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic_model.h"
#include "scheduling/drafting/draft_resolver.h"
#include "scheduling/running_batch.h"

namespace skipdec::runtime {
namespace {

using support::ArithmeticBackend;
using support::ArithmeticBundle;
using support::falling_schedule;
using support::kShortMemory;

using Completions = std::vector<Completion>;

class DraftedBatchTest : public ::testing::Test {
 protected:
  void make(const std::string& draft, std::int64_t kv_memory = 1 << 22,
            PrefixSharing prefix_cache = PrefixSharing::kShared, std::int64_t failing_call = 0,
            std::unique_ptr<Drafter> drafter = nullptr) {
    batch_.reset();
    backend_ = std::make_unique<ArithmeticBackend>(failing_call);
    engines_ = Engines::load(bundle_.manifest(), *backend_);
    RunningBatchConfig config;
    config.max_batch_size = 4;
    config.kv_memory = kv_memory;
    config.prefix_cache = prefix_cache;
    const std::string allowed = draft == "off" ? draft : draft + ",exact=no";
    config.draft = resolve_draft(allowed, bundle_.manifest());
    if (config.draft) engines_.load_trained_drafts(bundle_, *backend_);
    std::unique_ptr<DraftedDecoding> decoding;
    if (drafter) {
      decoding = std::make_unique<DraftedDecoding>(*config.draft);
      decoding->add(std::move(drafter));
    }
    batch_ = std::make_unique<RunningBatch>(bundle_.manifest(), engines_, nullptr, config,
                                            std::move(decoding));
    next_ = 0;
  }

  Request request(const TokenSpan& prompt, std::int64_t max_tokens,
                  const std::string& schedule = "full") const {
    Request made;
    made.prompt = prompt;
    made.max_tokens = made.params.max_tokens = max_tokens;
    made.params.temperature = 0;
    made.params.seed = 5;
    made.params.ignore_eos = true;
    made.schedule = bundle_.schedules().resolve(schedule, max_tokens);
    return made;
  }

  // Returns requests of seven kinds of sampling, at full depth and at falling depths.
  std::vector<Request> mixed() const {
    std::vector<Request> made;
    for (std::int64_t number = 0; number < 21; ++number) {
      Request each = request({5 + number % 3, 9}, 8 + number % 5 * 8,
                             number % 2 == 0 ? "full" : falling_schedule(5, 2, 3));
      SamplingParams& params = each.params;
      switch (number % 7) {
        case 1:
          params.temperature = 0.5;
          params.n = 2;
          break;
        case 2:
          params.temperature = 0.3;
          params.top_k = 3;
          break;
        case 3:
          params.repetition_penalty = 1.4;
          params.presence_penalty = 0.5;
          break;
        case 4:
          params.temperature = 0.4;
          params.frequency_penalty = 0.3;
          params.logprobs = 3;
          break;
        case 5:
          params.logprobs = 2;
          params.min_tokens = 5;
          params.stop_token_ids = {11, 30, 31, 32, 33, 60};
          break;
        case 6:
          each.max_tokens = params.max_tokens = 1 + number / 7;
          break;
        default:
          break;
      }
      made.push_back(std::move(each));
    }
    return made;
  }

  // Runs requests together and returns their completions, in order.
  std::vector<Completions> run(const std::vector<Request>& requests) {
    const std::int64_t first = next_;
    for (const Request& each : requests) batch_->add(next_++, each, 0);
    std::map<std::int64_t, std::int64_t> tokens, drafted;
    while (batch_->is_busy()) {
      for (const Delta& delta : batch_->step(0)) {
        tokens[delta.number] += delta.has_token ? 1 : 0;
        drafted[delta.number] += delta.drafted ? 1 : 0;
      }
    }
    std::vector<Completions> ended;
    for (std::int64_t number = first; number < next_; ++number) {
      ended.push_back(batch_->take(number));
      std::int64_t count = 0, accepted = 0;
      for (const Completion& each : ended.back()) {
        count += static_cast<std::int64_t>(each.token_ids.size());
        accepted += each.accepted;
      }
      EXPECT_EQ(tokens[number], count) << "deltas of " << number;
      EXPECT_EQ(drafted[number], accepted) << "deltas of " << number;
    }
    EXPECT_EQ(batch_->stats().reserved_bytes, 0);
    return ended;
  }

  static void expect_equal(const std::vector<Completions>& found,
                           const std::vector<Completions>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t number = 0; number < found.size(); ++number) {
      ASSERT_EQ(found[number].size(), expected[number].size());
      for (std::size_t index = 0; index < found[number].size(); ++index) {
        const Completion &one = found[number][index], &other = expected[number][index];
        EXPECT_EQ(one.token_ids, other.token_ids) << number;
        EXPECT_EQ(one.layers, other.layers) << number;
        EXPECT_EQ(one.finish_reason, other.finish_reason) << number;
        EXPECT_EQ(one.stop_reason, other.stop_reason) << number;
        EXPECT_EQ(one.logprobs_ends, other.logprobs_ends) << number;
        ASSERT_EQ(one.logprobs.size(), other.logprobs.size()) << number;
        for (std::size_t place = 0; place < one.logprobs.size(); ++place) {
          EXPECT_EQ(one.logprobs[place].token_id, other.logprobs[place].token_id);
          EXPECT_EQ(one.logprobs[place].logprob, other.logprobs[place].logprob);
        }
      }
    }
  }

  // Returns requests' completions without drafts.
  std::vector<Completions> undrafted(const std::vector<Request>& requests) {
    make("off");
    return run(requests);
  }

  ArithmeticBundle bundle_;
  std::unique_ptr<ArithmeticBackend> backend_;
  Engines engines_;
  std::unique_ptr<RunningBatch> batch_;
  std::int64_t next_ = 0;
};

// Proposes a random number of a text's tokens, and makes some wrong.
class RandomDrafter : public Drafter {
 public:
  RandomDrafter(TokenSpan text, int wrong_percent)
      : text_(std::move(text)), wrong_(wrong_percent) {}

  std::string source() const override { return "random"; }
  void propose(const std::vector<RowDrafts*>& asked, const std::vector<RunningRow>& /*rows*/,
               std::int64_t most, const GoesOn& /*goes_on*/,
               std::vector<Guesses>& proposed) override {
    for (std::size_t index = 0; index < asked.size(); ++index) {
      const auto written = static_cast<std::size_t>(asked[index]->row.sequence->num_tokens());
      const auto count = static_cast<std::size_t>(chance_() % (most + 3));  // sometimes too many
      for (std::size_t place = written; place < written + count && place < text_.size(); ++place) {
        proposed[index].add((text_[place] + error()) % support::kVocabulary, 0);
      }
    }
  }

 private:
  int error() { return static_cast<int>(chance_() % 100) < wrong_ ? 1 : 0; }

  std::mt19937 chance_{3};  // NOLINT(bugprone-random-generator-seed): repeatable
  TokenSpan text_;
  int wrong_;
};

class ForcedDraftsTest : public DraftedBatchTest, public ::testing::WithParamInterface<int> {
 protected:
  static std::unique_ptr<Drafter> random(const TokenSpan& text) {
    return std::make_unique<RandomDrafter>(text, GetParam());
  }
};

TEST_P(ForcedDraftsTest, RightAndWrongGuessesChangeNoText) {
  for (Request& submitted : mixed()) {
    const auto expected = undrafted({submitted});
    make("own,adapt=no", 1 << 22, PrefixSharing::kShared, 0, random(expected[0][0].token_ids));
    expect_equal(run({submitted, submitted}), {expected[0], expected[0]});
    const EngineStats stats = batch_->stats();
    if (GetParam() == 0 && submitted.max_tokens > 8) {
      EXPECT_GT(stats.accepted_draft_tokens, 0);
    }
    EXPECT_LE(stats.accepted_draft_tokens, stats.draft_tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(WrongPercents, ForcedDraftsTest, ::testing::Values(0, 30, 100));

TEST_F(DraftedBatchTest, LayersDraftOnlyTokensWhosePlanContainsThem) {
  make("ends:3,adapt=no");
  // Depth 5, 4, 3, 2 for eight tokens each: the last eight lack a layer of the draft.
  const Completion falling = run({request({5, 6, 7}, 33, falling_schedule(5, 2, 8))})[0][0];
  EXPECT_GT(falling.drafted, 0);
  EXPECT_GE(falling.passes(), 8);
  EXPECT_EQ(run({request({5, 6, 7}, 33, falling_schedule(2, 2, 1))})[0][0].drafted, 0);
}

TEST_F(DraftedBatchTest, AFailedDraftEndsItsRowsAndLaterOnesRun) {
  make("ends:3,adapt=no", 1 << 22, PrefixSharing::kShared, support::kLayers + 2);
  const Request submitted = request({5, 6, 7}, 20);
  EXPECT_EQ(run({submitted})[0][0].finish_reason, FinishReason::kError);
  const std::vector<Completions> again = run({submitted});
  expect_equal(again, undrafted({submitted}));
}

class MixedDraftsTest : public DraftedBatchTest,
                        public ::testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Drafts, MixedDraftsTest,
                         ::testing::Values("own+lookup,adapt=no", "own+ends:3,adapt=no",
                                           "first:2,adapt=no,tokens=3", "own+ends:3", "own+trained",
                                           "trained,adapt=no", "lookup+trained,adapt=no,tokens=3"));

// Requests arrive late, are cancelled, and draft or not, with little memory.
TEST_P(MixedDraftsTest, RequestsThatComeAndGoHaveTheTextsThatTheyHaveAlone) {
  const std::vector<Request> kinds = mixed();
  const auto expected = undrafted(kinds);
  make(GetParam(), kShortMemory);
  std::mt19937 chance(11);  // NOLINT(bugprone-random-generator-seed): repeatable
  std::vector<std::size_t> kind_of;
  std::int64_t aborted = 0;
  std::map<std::int64_t, Completions> ended;
  while (batch_->is_busy() || kind_of.size() < 150) {
    while (kind_of.size() < 150 && (chance() % 3 == 0 || !batch_->is_busy())) {
      kind_of.push_back(chance() % kinds.size());
      Request submitted = kinds[kind_of.back()];
      submitted.drafts = chance() % 4 != 0;
      batch_->add(static_cast<std::int64_t>(kind_of.size()) - 1, submitted, 0);
    }
    const auto count = static_cast<std::int64_t>(kind_of.size());
    if (chance() % 20 == 0) batch_->abort(static_cast<std::int64_t>(chance()) % count, "cancelled");
    batch_->step(0);
    for (std::int64_t number = 0; number < count; ++number) {
      if (ended.count(number) == 0 && batch_->has_ended(number)) {
        ended[number] = batch_->take(number);
      }
    }
  }
  for (const auto& [number, completions] : ended) {
    for (std::size_t index = 0; index < completions.size(); ++index) {
      const TokenSpan& seen = completions[index].token_ids;
      TokenSpan wanted = expected[kind_of[static_cast<std::size_t>(number)]][index].token_ids;
      if (completions[index].finish_reason == FinishReason::kAbort) {
        ++aborted;
        wanted.resize(seen.size());
      }
      EXPECT_EQ(seen, wanted) << number;
    }
  }
  EXPECT_EQ(ended.size(), 150U);
  EXPECT_GT(aborted, 0);
  if (GetParam().find("adapt=no") != std::string::npos) {  // otherwise no draft may pay
    EXPECT_GT(batch_->stats().draft_tokens, 0);
  }
  EXPECT_EQ(batch_->stats().reserved_bytes, 0);
}

TEST_F(DraftedBatchTest, ARequestWithDraftsOffNeitherDraftsNorTeaches) {
  make("own,adapt=no");
  Request off = request({5, 6, 7}, 20);
  off.drafts = false;
  run({off});
  EXPECT_EQ(run({off})[0][0].drafted, 0);
  const Completion on = run({request({5, 6, 7}, 20)})[0][0];
  EXPECT_LT(on.accepted, 10);  // only what repeats in this text
  EXPECT_GT(run({request({5, 6, 7}, 20)})[0][0].accepted, 10);
}

TEST_F(DraftedBatchTest, ClientsLearnFromEachOtherOnlyIfTheyShare) {
  Request first = request({5, 6, 7}, 20);
  Request second = first;
  first.client = "a";
  second.client = "b";
  for (const PrefixSharing sharing : {PrefixSharing::kShared, PrefixSharing::kClient}) {
    make("own,adapt=no", 1 << 22, sharing);
    const std::int64_t alone = run({first})[0][0].accepted;
    const std::int64_t after = run({second})[0][0].accepted;
    EXPECT_EQ(after > alone, sharing == PrefixSharing::kShared);
    EXPECT_GE(after, alone);
    EXPECT_GT(run({first})[0][0].accepted, alone);
  }
}

// Proposes one token at each place, so that there is always something to choose.
class EagerDrafter : public Drafter {
 public:
  explicit EagerDrafter(std::int64_t token) : token_(token) {}

  std::string source() const override { return "eager"; }
  void propose(const std::vector<RowDrafts*>& asked, const std::vector<RunningRow>& /*rows*/,
               std::int64_t most, const GoesOn& /*goes_on*/,
               std::vector<Guesses>& proposed) override {
    for (std::size_t index = 0; index < asked.size(); ++index) {
      for (std::int64_t guess = 0; guess < most; ++guess) proposed[index].add(token_, 0);
    }
  }

 private:
  std::int64_t token_;
};

TEST_F(DraftedBatchTest, PlainPassesAreMeasuredBeforeAnyDraft) {
  make("own", 1 << 22, PrefixSharing::kShared, 0, std::make_unique<EagerDrafter>(0));
  const Request submitted = request({5, 6, 7}, 50);
  batch_->add(0, submitted, 0);
  // The prompt, a pass that does not count since its row is new, and four that do.
  for (int step = 0; step < 6; ++step) batch_->step(0);
  EXPECT_EQ(batch_->stats().steps, 5);
  EXPECT_EQ(batch_->stats().drafting, 0);
  batch_->step(0);
  EXPECT_GT(batch_->stats().drafting, 0);
}

TEST_F(DraftedBatchTest, ARowThatFailsWithinAPassCountsTheGuessesThatHeldBefore) {
  Request submitted = request({5, 6, 7}, 20);
  submitted.params.frequency_penalty = -2e38;  // repeats a token once, then its logit is infinite
  const TokenSpan text = undrafted({submitted})[0][0].token_ids;
  ASSERT_EQ(text, TokenSpan(2, text[0]));
  make("own,adapt=no", 1 << 22, PrefixSharing::kShared, 0, std::make_unique<EagerDrafter>(text[0]));
  const Completion failed = run({submitted})[0][0];
  EXPECT_EQ(failed.token_ids, text);
  EXPECT_EQ(failed.finish_reason, FinishReason::kError);
  EXPECT_EQ(failed.accepted, 1);
  EXPECT_EQ(failed.passes(), 0);
  EXPECT_EQ(batch_->stats().accepted_draft_tokens, 1);
}

TEST_F(DraftedBatchTest, AFailedPassEndsItsRowsAndLaterOnesDraftAgain) {
  make("own,adapt=no", 1 << 22, PrefixSharing::kShared, 3 * support::kLayers);
  const Request submitted = request({5, 6, 7}, 20);
  EXPECT_EQ(run({submitted})[0][0].finish_reason, FinishReason::kError);
  run({submitted});
  EXPECT_GT(run({submitted})[0][0].accepted, 0);
  const std::vector<Completions> again = run({submitted});
  expect_equal(again, undrafted({submitted}));
}

}  // namespace
}  // namespace skipdec::runtime
