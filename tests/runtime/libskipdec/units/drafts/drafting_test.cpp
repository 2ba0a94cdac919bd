#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "arithmetic_model.h"
#include "refusals.h"
#include "scheduling/drafting/draft_config.h"
#include "scheduling/drafting/draft_policy.h"
#include "scheduling/drafting/draft_resolver.h"
#include "scheduling/drafting/ngrams/lookup_index.h"
#include "scheduling/drafting/ngrams/ngram_table.h"

namespace skipdec::runtime {
namespace {

std::string shortest(const std::string& text) {
  const std::optional<DraftConfig> config = DraftConfig::parse(text);
  return config ? config->text() : "off";
}

struct Reading {
  std::string text, expected;
};

class DraftTextTest : public ::testing::TestWithParam<Reading> {};

TEST_P(DraftTextTest, IsReadAsItsShortestForm) {
  const Reading& reading = GetParam();
  EXPECT_EQ(shortest(reading.text), reading.expected);
  EXPECT_EQ(shortest(reading.expected), reading.expected);
}

INSTANTIATE_TEST_SUITE_P(
    Texts, DraftTextTest,
    ::testing::Values(Reading{" Own + ENDS : 3 , tokens = 5", "own+ends:3,tokens=5"},
                      Reading{"own+lookup,exact=yes,tokens=7,adapt=yes", "own+lookup"},
                      Reading{"trained,exact=no,adapt=no,tokens=1",
                              "trained,tokens=1,adapt=no,exact=no"},
                      Reading{" OFF ", "off"}));

class BadDraftTest : public ::testing::TestWithParam<Reading> {};

TEST_P(BadDraftTest, IsRefusedWithWhatIsAllowed) {
  const std::string words = refusal([] { DraftConfig::parse(GetParam().text); });
  EXPECT_NE(words.find(GetParam().expected), std::string::npos) << words;
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadDraftTest,
    ::testing::Values(
        Reading{"", "'' is unknown; allowed: own, lookup, ends:N, first:N, trained, or"},
        Reading{"own+off", "'off' stands alone; allowed: own"},
        Reading{"own+own", "'own' is named twice; name it once"},
        Reading{"ends:3+own", "'ends:3' always proposes, so what follows it is never asked"},
        Reading{"ends", "'ends' needs a number of layers, e.g. ends:3"},
        Reading{"ends:0", "'ends:0' needs a number of layers"},
        Reading{"ends:-1", "'ends:-1' needs a number of layers"},
        Reading{"ends:9999999999", "needs a number of layers"},
        Reading{"own:3", "'own:3' has a number; write own"},
        Reading{"own,tokens=8", "tokens is '8'; allowed: 1 to 7"},
        Reading{"own,tokens", "tokens is ''; allowed: 1 to 7"},
        Reading{"own,", "'' is unknown; allowed: tokens, adapt, exact"},
        Reading{"own,exact=maybe", "exact is 'maybe'; allowed: yes or no"},
        Reading{"own,tokens=4,tokens=5", "tokens is given twice; give it once"},
        Reading{"onw,tokens=9", "draft | 2 problems:"},
        Reading{std::string(1200, 'x'), "has 1,200 characters; allowed: 200"}));

class DraftRefusalTest : public ::testing::Test {
 protected:
  DraftRefusalTest() {
    manifest_.uses_skipdec_kernels = true;
    manifest_.model.num_layers = testing::kLayers;
  }
  std::string words(const std::string& text) const {
    return refusal([&] { resolve_draft(text, manifest_); });
  }

  testing::ArithmeticBundle bundle_;
  Manifest manifest_;
};

TEST_F(DraftRefusalTest, BundlesWhoseTextsMayDifferAreRefusedUnlessAllowed) {
  EXPECT_EQ(words("own"), "");
  manifest_.foreign_products = {"int8-block", "float32"};
  EXPECT_NE(words("own").find("products of int8-block and float32 weights"), std::string::npos);
  manifest_.uses_skipdec_kernels = false;
  EXPECT_NE(words("own").find("needs skipdec's kernels"), std::string::npos);
  for (const char* allowed : {"own,exact=no", "off", ""}) EXPECT_EQ(words(allowed), "");
}

TEST_F(DraftRefusalTest, ADraftRunsFewerLayersThanTheModel) {
  EXPECT_EQ(words("own+first:5"), "");
  EXPECT_EQ(words("own+first:6"),
            "draft | first:6 runs 6 layers of 6; allowed: 1 to 5, and 2 to 4 are fast");
}

TEST_F(DraftRefusalTest, WhatBundlesLackIsRefused) {
  EXPECT_EQ(words("trained"),
            "draft | trained needs a draft layer, which the bundle does not have; train one with "
            "`skipdec tune --draft-layer` and export the model with --draft-layer");
}

TEST_F(DraftRefusalTest, AutoStandsForTheDraftsOfTheManifest) {
  EXPECT_EQ(resolve_draft("auto", manifest_)->text(), "own");
  manifest_.draft = "own+ends:3";
  EXPECT_EQ(resolve_draft(" AUTO ", manifest_)->text(), "own+ends:3");
  manifest_.draft = "off";
  EXPECT_FALSE(resolve_draft("auto", manifest_));
  manifest_.draft = "onw";
  EXPECT_NE(words("auto").find("draft | 'onw' is unknown"), std::string::npos);
}

TEST_F(DraftRefusalTest, ALayerDraftRunsTheLayersThatItsTextNames) {
  const std::vector<std::pair<std::string, LayerPlan>> layers{
      {"ends:3", {0, 4, 5}}, {"ends:1", {0}}, {"first:3", {0, 1, 2}}};
  for (const auto& [text, expected] : layers) {
    const auto config = resolve_draft("own+" + text, manifest_);
    EXPECT_EQ(config->parts.back().layers, expected) << text;
  }
}

TEST_F(DraftRefusalTest, DraftsOfLayersThatAScheduleNeverRunsAreWarnedOf) {
  const std::vector<std::pair<std::string, bool>> drafts{
      {"own", false}, {"own+ends:3", false}, {"ends:5", true}, {"own+first:2", true}};
  const Schedule shallow(testing::kLayers, {{0, {0, 3, 4, 5}}, {2, {0, 5}}}, {}, "4 layers");
  for (const auto& [text, is_unused] : drafts) {
    const auto config = resolve_draft(text, manifest_);
    EXPECT_EQ(unused_draft_warning(*config, *bundle_.schedules().resolve("full", 1)), "") << text;
    const std::string words = unused_draft_warning(*config, shallow);
    EXPECT_EQ(words.find("needs layers that schedule 4 layers never runs") != std::string::npos,
              is_unused)
        << text << ": " << words;
  }
}

TEST_F(DraftRefusalTest, ADraftLayerRunsBehindTheModelsFirstLayers) {
  manifest_.draft_layer.emplace().behind = 2;
  const auto config = resolve_draft("own+trained", manifest_);
  EXPECT_EQ(config->parts.back().layers, (LayerPlan{0, 1, testing::kLayers}));
  EXPECT_TRUE(config->uses_draft_layer());
}

TEST(ByteShare, CountsWhatADraftStepReads) {
  Manifest manifest;
  manifest.model.num_layers = 2;
  manifest.layers.resize(2);
  manifest.embed.step_bytes = 10;
  for (EngineSpec& layer : manifest.layers) layer.step_bytes = 30;
  manifest.head.step_bytes = 30;
  manifest.draft_layer.emplace().engine.step_bytes = 20;
  EXPECT_EQ(byte_share(manifest, {0, 2}), 0.9);
  EXPECT_EQ(byte_share(manifest, {}), 0);
  manifest.draft_head.emplace().engine.step_bytes = 5;
  EXPECT_EQ(byte_share(manifest, {1}), 0.45);
}

TEST_F(DraftRefusalTest, ARequestMayOnlySwitchDraftsOffByThisWord) {
  EXPECT_TRUE(wants_drafts(""));
  EXPECT_FALSE(wants_drafts("off"));
  for (const std::string text : {"own", "OFF", " off"}) {
    EXPECT_NE(
        refusal([&] { wants_drafts(text); }).find("is '" + text + "'; allowed in a request: off"),
        std::string::npos);
  }
}

TokenSpan proposed(const NGramTable& table, const TokenSpan& tokens, std::int64_t most) {
  Guesses found;
  table.propose(tokens, most, found);
  return found.tokens;
}

TEST(NGramTableTest, TheMostFrequentFollowerOfTheLongestNGramIsProposed) {
  NGramTable table;
  table.count({1, 2, 3, 1, 2, 4, 1, 2, 4}, 0);
  EXPECT_EQ(proposed(table, {1, 2}, 1), TokenSpan{4});
  EXPECT_EQ(proposed(table, {9, 3, 1, 2}, 1), TokenSpan{4});
  EXPECT_EQ(proposed(table, {9, 9, 2}, 2), (TokenSpan{4, 1}));
}

TEST(NGramTableTest, ProposalsGoOnFromProposalsUntilNothingIsKnown) {
  NGramTable table;
  table.count({1, 2, 3, 4}, 0);
  EXPECT_EQ(proposed(table, {1}, 7), (TokenSpan{2, 3, 4}));
  EXPECT_EQ(proposed(table, {1}, 2), (TokenSpan{2, 3}));
  EXPECT_EQ(proposed(table, {5}, 7), TokenSpan{});
  EXPECT_EQ(proposed(table, {}, 7), TokenSpan{});
}

TEST(NGramTableTest, OfEqualCountsTheFirstToReachItIsProposed) {
  NGramTable table;
  const std::vector<std::pair<std::int64_t, std::int64_t>> told{{2, 2}, {3, 2}, {3, 3}, {2, 3}};
  for (const auto& [token, best] : told) {
    table.count({1, token}, 0);
    EXPECT_EQ(proposed(table, {1}, 1), TokenSpan{best});
  }
}

TEST(NGramTableTest, OnlyTokensFromTheStartOnAreCounted) {
  NGramTable table;
  table.count({1, 2, 3, 4}, 3);
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(proposed(table, {1}, 1), TokenSpan{});
  EXPECT_EQ(proposed(table, {1, 2, 3}, 1), TokenSpan{4});
}

TEST(NGramTableTest, AFullTableEvictsTheFirstNGram) {
  NGramTable table(3);
  table.count({1, 2, 3}, 0);  // 1; 2, 1 2
  table.count({7, 8}, 0);
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(proposed(table, {1}, 1), TokenSpan{});
  EXPECT_EQ(proposed(table, {7}, 1), TokenSpan{8});
}

TEST(NGramTableTest, FollowersBeyondSixteenAreNotCounted) {
  NGramTable table;
  for (std::int64_t follower = 10; follower < 27; ++follower) table.count({1, follower}, 0);
  for (int time = 0; time < 5; ++time) table.count({1, 26}, 0);
  EXPECT_EQ(proposed(table, {1}, 1), TokenSpan{10});
  table.count({1, 25}, 0);
  EXPECT_EQ(proposed(table, {1}, 1), TokenSpan{25});
}

TEST(NGramTableTest, EachClientHasATableAndTheLeastRecentGoes) {
  NGramTables tables(true);
  for (std::int64_t client = 0; client < 32; ++client) {
    tables.of(std::to_string(client)).count({1, client}, 0);
  }
  EXPECT_EQ(proposed(tables.of("0"), {1}, 1), TokenSpan{0});
  tables.of("new");
  EXPECT_EQ(proposed(tables.of("0"), {1}, 1), TokenSpan{0});
  EXPECT_EQ(proposed(tables.of("1"), {1}, 1), TokenSpan{});  // evicted by the new one
}

TEST(NGramTableTest, ClientsMayShareATable) {
  NGramTables tables(false);
  tables.of("a").count({1, 2}, 0);
  EXPECT_EQ(proposed(tables.of("b"), {1}, 1), TokenSpan{2});
}

TokenSpan looked_up(LookupIndex& index, const TokenSpan& tokens, std::int64_t most) {
  Guesses found;
  index.propose(tokens, most, found);
  return found.tokens;
}

struct Lookup {
  TokenSpan text, expected;
};

class LookupTest : public ::testing::TestWithParam<Lookup> {};

TEST_P(LookupTest, ProposesWhatFollowedTheLatestLongestMatch) {
  LookupIndex index;
  EXPECT_EQ(looked_up(index, GetParam().text, 7), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Texts, LookupTest,
    ::testing::Values(Lookup{{1, 2, 3, 4, 1, 2}, {3, 4, 1, 2}},
                      Lookup{{1, 2, 3, 1, 2, 5, 1, 2}, {5, 1, 2}},
                      Lookup{{5, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2}, {3, 9, 1, 2, 4, 5, 1}},
                      Lookup{{1, 1, 1}, {1}}, Lookup{{1, 2, 3}, {}}, Lookup{{1}, {}}));

TEST(LookupIndexTest, AnIndexThatGrowsWithItsTextProposesTheSame) {
  const TokenSpan text{1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 1, 2};
  LookupIndex growing;
  for (std::size_t end = 1; end <= text.size(); ++end) {
    const TokenSpan so_far(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end));
    LookupIndex fresh;
    EXPECT_EQ(looked_up(growing, so_far, 3), looked_up(fresh, so_far, 3)) << end;
  }
}

// Measures passes over 1 to 8 tokens that cost 1 + ``slope`` per further token.
void measure(PassCosts& costs, double slope, std::int64_t rows = 1) {
  for (std::int64_t tokens = 1; tokens <= 8; ++tokens) {
    for (int pass = 0; pass < 15; ++pass) {
      costs.add_pass(rows, tokens, 1 + slope * static_cast<double>(tokens - 1));
    }
  }
}

TEST(NGramTableTest, EvidenceIsTheLengthOfTheMatchAndTheFollowersShare) {
  NGramTable table;
  table.count({1, 2, 3, 1, 2, 4, 1, 2, 4}, 0);  // 1 2: 4 twice, 3 once
  Guesses found;
  table.propose({1, 2}, 1, found);
  EXPECT_EQ(found.evidence, std::vector<std::size_t>{4 * (2 - 1) + 2});
  EXPECT_EQ(NGramTable::priors().size(), 20U);
}

TEST(LookupIndexTest, EvidenceIsTheLengthOfTheMatchGuessesIncluded) {
  LookupIndex index;
  Guesses found;
  index.propose({1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}, 7, found);
  EXPECT_EQ(found.evidence, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(LookupIndex::priors().size(), 7U);
}

// A policy of n-grams with two classes of evidence, and of layers whose steps cost 0.2.
class DraftPolicyTest : public ::testing::Test {
 protected:
  DraftPolicyTest() {
    policy_.add_source(SourceAcceptance("own", {0.5, 0.5}));
    policy_.add_source(SourceAcceptance("ends:3", {0.5}, 0.2));
  }

  // Lets guesses of a class hold with a share, so often that nothing else counts.
  void teach(std::size_t source, std::size_t evidence, std::size_t held_of_ten) {
    RowResults row;
    for (int time = 0; time < 600; ++time) {
      for (std::size_t one = 0; one < 10; ++one) {
        policy_.source(source).add({evidence}, 1, one < held_of_ten ? 1 : 0, row);
      }
    }
  }

  // Lets drafts gain as much as is kept.
  void earn(std::int64_t rows = 1) { policy_.count_pass(rows, 8 * rows, 1.0); }

  DraftChoice choose(const std::vector<std::size_t>& own, std::size_t layers) {
    RowOffers offers(2);
    offers[0] = {own, &new_row_};
    offers[1] = {std::vector<std::size_t>(layers, 0), &new_row_};
    return policy_.choose({offers}, 1);
  }

  PassCosts costs_;
  DraftPolicy policy_{costs_};
  RowResults new_row_;
};

TEST_F(DraftPolicyTest, TheDrafterWithTheHigherExpectedGainDrafts) {
  measure(costs_, 0.04);
  earn();
  teach(0, 0, 5);
  teach(0, 1, 10);
  teach(1, 0, 9);
  const DraftChoice weak = choose({0, 0}, 7);
  EXPECT_EQ(weak.sources.front(), 1U);
  const DraftChoice strong = choose({1, 1, 1, 1, 1, 1, 1}, 7);
  EXPECT_EQ(strong.sources.front(), 0U);
  EXPECT_EQ(strong.count, 7);
}

TEST_F(DraftPolicyTest, MoreIsDraftedWhereMoreHolds) {
  measure(costs_, 0.2);
  earn();
  teach(0, 0, 8);
  // At 0.8: 3.36 tokens for 1.8 (1.87) are better than 2.44 for 1.4 (1.74) and 4.16 for 2.4.
  EXPECT_EQ(choose({0, 0, 0, 0, 0, 0, 0}, 0).count, 4);
  EXPECT_EQ(choose({0, 0, 0}, 0).count, 2);
  teach(0, 0, 0);
  EXPECT_EQ(choose({0, 0, 0, 0, 0, 0, 0}, 0).count, 0);
}

TEST_F(DraftPolicyTest, ARowWhoseDraftsFailDraftsLess) {
  measure(costs_, 0.15);
  earn();
  teach(0, 0, 8);
  const std::int64_t fresh = choose({0, 0, 0, 0, 0, 0, 0}, 0).count;
  new_row_ = {16, 2};
  const std::int64_t failing = choose({0, 0, 0, 0, 0, 0, 0}, 0).count;
  EXPECT_LT(failing, fresh);
}

TEST_F(DraftPolicyTest, EachRowHasTheDrafterThatIsBestForIt) {
  measure(costs_, 0.04, 2);
  for (int step = 0; step < 3; ++step) costs_.add_draft("ends:3", 2, 0.02);
  earn(2);
  teach(0, 0, 2);
  teach(0, 1, 10);
  teach(1, 0, 9);
  std::vector<RowOffers> offers(2, RowOffers(2));
  for (std::size_t row = 0; row < 2; ++row) {
    offers[row][0] = {std::vector<std::size_t>(7, row), &new_row_};
    offers[row][1] = {std::vector<std::size_t>(7, 0), &new_row_};
  }
  const DraftChoice choice = policy_.choose(offers, 2);
  EXPECT_EQ(choice.sources[0], 1U);
  EXPECT_EQ(choice.sources[1], 0U);
}

TEST_F(DraftPolicyTest, DraftersAreTriedEverLessOftenWhileNothingHolds) {
  measure(costs_, 0.1);
  teach(0, 0, 0);
  std::vector<std::int64_t> tries;
  RowResults row;
  for (std::int64_t pass = 0; pass < 1200; ++pass) {
    const DraftChoice choice = choose({0, 0, 0, 0}, 0);
    if (choice.count > 0) {
      EXPECT_TRUE(choice.is_try);
      EXPECT_EQ(choice.count, 2);
      tries.push_back(pass);
      policy_.source(0).add({0, 0}, 1, 0, row, choice.is_try);
    }
    policy_.count_pass(1, 1, 1.0);  // the try's cost is left out, else there would be a pause
  }
  EXPECT_EQ(tries, (std::vector<std::int64_t>{16, 48, 112, 240, 496, 752, 1008}));
}

TEST_F(DraftPolicyTest, NothingIsTriedThatCouldNotGain) {
  measure(costs_, 1);
  teach(0, 0, 0);
  for (int pass = 0; pass < 100; ++pass) {
    EXPECT_EQ(choose({0, 0}, 0).count, 0);
    policy_.count_pass(1, 1, 1.0);
  }
}

TEST_F(DraftPolicyTest, DraftsThatNeverHoldCostAtMostThreePercent) {
  constexpr int kPasses = 1000;
  double total = 0;
  RowResults row;
  for (int pass = 0; pass < kPasses; ++pass) {
    if (policy_.pauses()) {
      ++total;
      continue;
    }
    if (costs_.wants_plain(1)) {
      costs_.add_pass(1, 1, 1.0);
      ++total;
      continue;
    }
    const DraftChoice choice = choose({0, 0, 0, 0, 0, 0, 0}, 7);
    double seconds = 1.05;
    if (choice.count > 0) {
      const std::size_t source = *choice.sources.front();
      seconds += 0.3 * static_cast<double>(choice.count);
      costs_.add_pass(1, choice.count + 1, seconds);
      if (source == 1) seconds += 0.2 * static_cast<double>(choice.count);
      policy_.source(source).add({0}, 1, 0, row, choice.is_try);
    }
    policy_.count_pass(1, 1, seconds);
    total += seconds;
  }
  EXPECT_LE(total, 1.03 * kPasses);
}

TEST_F(DraftPolicyTest, APauseLastsUntilThereIsSomethingToLoseAgain) {
  measure(costs_, 0.1);
  policy_.count_pass(1, 1, 3.5);
  int pauses = 0;
  while (policy_.pauses()) ++pauses;
  EXPECT_EQ(pauses, 49);  // of −0.48 and 0.5, 2 % each
  EXPECT_TRUE(costs_.wants_plain(1));
}

TEST_F(DraftPolicyTest, NothingIsDraftedThatMayCostMoreThanIsLeft) {
  measure(costs_, 0.2);
  teach(0, 0, 10);
  policy_.count_pass(1, 1, 2.5);
  EXPECT_EQ(choose({0, 0, 0, 0, 0, 0, 0}, 0).count, 2);  // half a pass may be lost
  earn();
  EXPECT_EQ(choose({0, 0, 0, 0, 0, 0, 0}, 0).count, 7);
}

TEST_F(DraftPolicyTest, ASearchIsCountedWhereAPassTookLongForOtherReasons) {
  measure(costs_, 0.1);
  policy_.count_search(1, 0, 1.5);
  EXPECT_FALSE(policy_.pauses());
  policy_.count_search(1, 1, 1.5);  // a guess held
  EXPECT_FALSE(policy_.pauses());
  policy_.count_search(1, 0, 0.2);
  EXPECT_TRUE(policy_.pauses());
}

TEST(PassCostsTest, AnUnmeasuredPassCostsNoMoreThanALongerOne) {
  PassCosts costs;
  for (const auto& [tokens, seconds] : {std::pair{1, 1.0}, {3, 1.5}, {6, 1.2}}) {
    for (int pass = 0; pass < 3; ++pass) costs.add_pass(1, tokens, seconds);
  }
  EXPECT_EQ(costs.pass_costs(1, 6), (std::vector<double>{1, 1.04, 1.5, 1.2, 1.2, 1.2}));
}

TEST(PassCostsTest, CostsAreMeansInPlainPassesOfAsManyRows) {
  PassCosts costs;
  for (int pass = 0; pass < 3; ++pass) {
    costs.add_pass(3, 1, 2);
    costs.add_pass(3, 3, 3);
  }
  costs.add_pass(3, 3, 500);                      // one that waited does not count
  EXPECT_EQ(costs.pass_costs(4, 3).back(), 1.5);  // 3 and 4 rows are one class
  EXPECT_EQ(costs.pass_costs(4, 1).back(), 1);
  EXPECT_DOUBLE_EQ(costs.pass_costs(1, 3).back(), 1.08);  // not measured
  EXPECT_EQ(costs.pass_costs(256, 2), (std::vector<double>{1, 2}));
  for (int pass = 0; pass < 15; ++pass) costs.add_pass(3, 3, 5);
  EXPECT_EQ(costs.pass_costs(3, 3).back(), 2.5);
}

TEST(PassCostsTest, PlainPassesAreMeasuredFirstAndAgainAfter256) {
  PassCosts costs;
  for (int time = 0; time < 2; ++time) {
    for (int pass = 0; pass < 4; ++pass) {
      EXPECT_TRUE(costs.wants_plain(1));
      costs.add_pass(1, 1, 1);
    }
    for (int pass = 0; pass < 256; ++pass) {
      EXPECT_FALSE(costs.wants_plain(1));
      costs.add_pass(1, 5, 1.2);
    }
  }
  EXPECT_TRUE(costs.wants_plain(1));
}

}  // namespace
}  // namespace skipdec::runtime
