#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <locale>
#include <string>
#include <vector>

#include "errors.h"
#include "json/shown.h"
#include "tokens/philox.h"
#include "tokens/sampler.h"

namespace skipdec::runtime {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::string problem_of(const SamplingParams& params, std::int64_t vocab_size = 100) {
  try {
    params.check(vocab_size, {2});
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kUsage);
    return error.what();
  }
  return "";
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

std::int64_t size_of(const std::vector<float>& logits) {
  return static_cast<std::int64_t>(logits.size());
}

std::vector<std::int64_t> tokens(Sampler& sampler, const std::vector<float>& logits, int count) {
  std::vector<std::int64_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(sampler.sample(logits.data()).token_id);
  return ids;
}

Sampler sampler_of(const SamplingParams& params, const std::vector<float>& logits,
                   std::int64_t output_index = 0) {
  return {params, {}, size_of(logits), output_index, {}};
}

TEST(Philox, TwoStreamsSeededByEntropyDiffer) {
  EXPECT_NE(Philox::of_entropy().next_word(), Philox::of_entropy().next_word());
}

TEST(SamplingParams, StopStringsAreLimitedInCharactersNotBytes) {
  SamplingParams params;
  params.stop.assign(1, "");
  for (int i = 0; i < 1024; ++i) params.stop[0] += "\xf0\x9f\x99\x82";
  EXPECT_EQ(problem_of(params), "");
  params.stop[0] += "x";
  EXPECT_NE(problem_of(params), "");
  params.stop.assign(65, "x");
  EXPECT_NE(problem_of(params), "");
}

TEST(SamplingParams, InvalidUtf8IsRefusedAsAStopString) {
  for (const char* text : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "a\xe2\x82", "\xf4\x90\x80\x80"}) {
    SamplingParams params;
    params.stop = {text};
    EXPECT_NE(problem_of(params), "") << shown_text(text);
  }
}

TEST(SamplingParams, EndTokensAreUniqueAndSorted) {
  SamplingParams params;
  params.stop_token_ids = {9, 2, 9, 5};
  EXPECT_EQ(params.ending_token_ids({2}), (std::vector<std::int64_t>{2, 5, 9}));
  EXPECT_EQ(params.ending_token_ids({1}), (std::vector<std::int64_t>{1, 2, 5, 9}));
  params.ignore_eos = true;
  EXPECT_EQ(params.ending_token_ids({1}), (std::vector<std::int64_t>{2, 5, 9}));
}

TEST(Shown, TextsAreQuotedAndTruncated) {
  EXPECT_EQ(shown_text("two\n"), R"('two\n')");
  EXPECT_EQ(shown_text("\xff"), "'\xEF\xBF\xBD'");
  EXPECT_EQ(shown_text(std::string(100, 'x')), "'" + std::string(59, 'x') + "…");
}

TEST(Shown, NumbersAreTheSameInEveryLocale) {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale(), new Comma));
  EXPECT_EQ(shown_number(0.25), "0.25");
  EXPECT_EQ(shown_number(1e-7), "1e-07");
  EXPECT_EQ(shown_number(std::nan("")), "nan");
  EXPECT_EQ(shown_number(1234567), "1.23457e+06");
  std::locale::global(before);
}

TEST(Sampler, LogitsThatAllowNoTokenAreReported) {
  const auto message = [](const SamplingParams& params, const std::vector<float>& logits) {
    try {
      sampler_of(params, logits).sample(logits.data());
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::kEngine);
      return std::string(error.what());
    }
    return std::string();
  };
  for (const SamplingParams& params : {greedy(), SamplingParams()}) {
    EXPECT_EQ(message(params, {0, kInfinity, kNan, kNan}).substr(0, 76),
              "logits of output token 0 | 2 of 4 are NaN, the first at token id 2; the engi");
    EXPECT_EQ(message(params, {0, kInfinity}).substr(0, 77),
              "logits of output token 0 | 1 of 2 are +inf, the first at token id 1; the engi");
    EXPECT_EQ(message(params, {-kInfinity, -kInfinity}),
              "logits of output token 0 | no token can be chosen: all are -inf or stop tokens");
  }
}

TEST(Sampler, ProposesWithTheRandomNumbersThatItDrawsWithLater) {
  const std::vector<float> logits = {0.1F, 0.4F, 0.3F, 0.2F, 0.35F, 0.15F, 0.25F};
  for (const double temperature : {0.0, 1.0}) {
    SamplingParams params;
    params.temperature = temperature;
    params.seed = 5;
    Sampler sampler = sampler_of(params, logits), other = sampler_of(params, logits);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::int64_t> proposed;
      for (std::int64_t place = 0; place < 8; ++place) {
        proposed.push_back(sampler.propose(logits.data(), size_of(logits), place));
      }
      EXPECT_EQ(proposed, tokens(sampler, logits, 8));
      EXPECT_EQ(proposed, tokens(other, logits, 8));
    }
  }
}

TEST(Sampler, ProposalsFollowThePenaltiesAndTheMaskOfTheirPlace) {
  const std::vector<float> logits = {0.0F, 0.5F, 0.9F, 0.4F};
  SamplingParams params = greedy();
  params.min_tokens = 2;
  params.stop_token_ids = {2};
  params.presence_penalty = 0.3;
  Sampler sampler = sampler_of(params, logits);
  EXPECT_EQ(sampler.propose(logits.data(), size_of(logits), 1), 1);
  EXPECT_EQ(sampler.propose(logits.data(), size_of(logits), 2), 2);
  EXPECT_EQ(tokens(sampler, logits, 1), std::vector<std::int64_t>{1});
  EXPECT_EQ(sampler.propose(logits.data(), size_of(logits), 0), 3);
}

TEST(Sampler, ProposesFromFewerTokensThanItMayDraw) {
  const std::vector<float> logits = {0.0F, 0.9F, 0.5F, 0.4F, 2.0F, 3.0F};
  SamplingParams params = greedy();
  params.min_tokens = 2;
  params.stop_token_ids = {2, 5};
  params.presence_penalty = 1;
  params.repetition_penalty = 1.5;
  Sampler sampler(params, {3, 4, 5}, size_of(logits), 0, {});
  EXPECT_EQ(sampler.propose(logits.data(), 4, 0), 1);
  EXPECT_EQ(sampler.propose(logits.data(), 4, 2), 1);
  EXPECT_EQ(tokens(sampler, logits, 1), std::vector<std::int64_t>{4});
  EXPECT_EQ(tokens(sampler, {0.0F, 5.0F, 0.0F, 0.0F, 0.0F, 0.0F}, 1), std::vector<std::int64_t>{1});
  EXPECT_EQ(sampler.propose(logits.data(), 4, 1), 2);
  EXPECT_EQ(sampler.propose(logits.data(), 1, 1), 0);
}

TEST(Sampler, ProposesFromGivenTokensAsIfOthersHadNoProbability) {
  const std::vector<std::int64_t> token_ids = {1, 3, 4, 8};
  const std::vector<float> logits = {0.5F, 0.9F, 0.8F, 0.7F};
  std::vector<float> whole(10, -kInfinity);
  for (std::size_t index = 0; index < token_ids.size(); ++index) {
    whole[static_cast<std::size_t>(token_ids[index])] = logits[index];
  }
  SamplingParams ordinary = greedy(), sampled, changed = greedy();
  sampled.seed = 3;
  changed.repetition_penalty = 2;
  changed.min_tokens = 2;
  changed.stop_token_ids = {4};
  for (const SamplingParams& params : {ordinary, sampled, changed}) {
    const Sampler sampler(params, {3, 5}, size_of(whole), 0, {});
    for (std::int64_t place = 0; place < 6; ++place) {
      EXPECT_EQ(sampler.propose(logits.data(), token_ids, place),
                sampler.propose(whole.data(), size_of(whole), place));
    }
  }
  const Sampler sampler(changed, {3, 5}, size_of(whole), 0, {});
  EXPECT_EQ(sampler.propose(logits.data(), token_ids, 0), 8);
  EXPECT_EQ(sampler.propose(logits.data(), token_ids, 2), 4);
}

TEST(Sampler, AProposalFromNaNIsAValidToken) {
  const std::vector<float> logits(5, kNan);
  for (const double temperature : {0.0, 1.0}) {
    SamplingParams params;
    params.temperature = temperature;
    const std::int64_t token =
        sampler_of(params, logits).propose(logits.data(), size_of(logits), 3);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 5);
  }
}

TEST(Sampler, MaskedTokensMayHaveAnyLogit) {
  SamplingParams params = greedy();
  params.min_tokens = 1;
  params.stop_token_ids = {1};
  const std::vector<float> logits = {0, kNan, 1};
  Sampler sampler = sampler_of(params, logits);
  EXPECT_EQ(sampler.sample(logits.data()).token_id, 2);
  EXPECT_THROW(sampler.sample(logits.data()), Error);
}

TEST(Logprobs, OfAScoredTokenIsTheLogSoftmax) {
  const std::vector<float> logits = {1, 2, 3, -kInfinity};
  const double total = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  EXPECT_NEAR(chosen_logprob(logits.data(), 4, 0, "text 0"), 1 - total, 1e-6);
  EXPECT_EQ(chosen_logprob(logits.data(), 4, 3, "text 0"), -INFINITY);
  const std::vector<float> invalid = {1, kNan};
  EXPECT_THROW(chosen_logprob(invalid.data(), 2, 0, "text 0"), Error);
}

}  // namespace
}  // namespace skipdec::runtime
