#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "arithmetic_model.h"
#include "refusals.h"
#include "scheduling/drafting/draft_config.h"
#include "scheduling/drafting/draft_policy.h"
#include "scheduling/drafting/draft_resolver.h"
#include "scheduling/drafting/lookup_index.h"
#include "scheduling/drafting/ngram_table.h"

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
                      Reading{"trained,head=8192,exact=no,adapt=no,tokens=1",
                              "trained,tokens=1,adapt=no,exact=no,head=8192"},
                      Reading{" OFF ", "off"}));

class BadDraftTest : public ::testing::TestWithParam<Reading> {};

TEST_P(BadDraftTest, IsRefusedWithWhatIsAllowed) {
  const std::string words = refusal([] { DraftConfig::parse(GetParam().text); });
  EXPECT_NE(words.find(GetParam().expected), std::string::npos) << words;
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadDraftTest,
    ::testing::Values(
        Reading{"", "'' is unknown; allowed: own, lookup, layers:N, ends:N, first:N, trained, or"},
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
        Reading{"own,", "'' is unknown; allowed: tokens, adapt, exact, head"},
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
    return refusal([&] { resolve_draft(text, manifest_, bundle_.schedules()); });
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
  EXPECT_EQ(words("trained,head=64"),
            "draft | 2 problems:\n"
            "  - trained needs a draft layer, which the bundle does not have; train one with "
            "`skipdec tune --draft-layer` and export the model with --draft\n"
            "  - head is 64, but the bundle has no narrow head; leave it out, or export the model "
            "with --draft-head");
  EXPECT_EQ(words("own,head=64"),
            "draft | head is 64, but no part runs layers; leave it out, or add ends:3");
  manifest_.draft_head.emplace().tokens = 32;
  EXPECT_EQ(words("ends:3,head=64"), "draft | head is 64; allowed: 32, the bundle's narrow head");
  EXPECT_EQ(words("ends:3,head=32"), "");
}

TEST_F(DraftRefusalTest, ALayerDraftRunsTheLayersThatItsTextNames) {
  const std::vector<std::pair<std::string, LayerPlan>> layers{
      {"ends:3", {0, 4, 5}}, {"ends:1", {0}}, {"first:3", {0, 1, 2}}, {"layers:3", {0, 4, 5}}};
  for (const auto& [text, expected] : layers) {
    const auto config = resolve_draft("own+" + text, manifest_, bundle_.schedules());
    EXPECT_EQ(config->parts.back().layers, expected) << text;
  }
}

TEST_F(DraftRefusalTest, ADraftLayerRunsBehindTheModelsFirstLayers) {
  manifest_.draft_layer.emplace().behind = 2;
  const auto config = resolve_draft("own+trained", manifest_, bundle_.schedules());
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
  manifest.draft_head.emplace().engine.step_bytes = 5;
  EXPECT_EQ(byte_share(manifest, {0, 2}, false), 0.9);
  EXPECT_EQ(byte_share(manifest, {1}, true), 0.45);
  EXPECT_EQ(byte_share(manifest, {}, false), 0);
}

TEST_F(DraftRefusalTest, ARequestMayOnlySwitchDraftsOff) {
  EXPECT_TRUE(wants_drafts(""));
  EXPECT_FALSE(wants_drafts(" Off"));
  EXPECT_NE(refusal([] { wants_drafts("own"); }).find("is 'own'; allowed in a request: off"),
            std::string::npos);
}

TokenSpan proposed(const NGramTable& table, const TokenSpan& tokens, std::int64_t most) {
  TokenSpan found{-1};
  table.propose(tokens, most, found);
  return found;
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
  TokenSpan found{-1};
  index.propose(tokens, most, found);
  return found;
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

class DraftPolicyTest : public ::testing::Test {
 protected:
  // Returns a policy that has seen ``results`` so often that nothing else counts.
  DraftPolicy after(const Acceptance& results) {
    DraftPolicy policy("own", costs_);
    for (int pass = 0; pass < 1500; ++pass) policy.add(results);
    return policy;
  }

  PassCosts costs_;
  std::vector<Acceptance> new_row_{{}};
};

TEST_F(DraftPolicyTest, MoreIsDraftedWhereMoreHolds) {
  measure(costs_, 0.2);
  EXPECT_EQ(after({7, 7}).choose(new_row_, 1, 7), 7);
  // At 0.8: 3.36 tokens for 1.8 (1.87) are better than 2.44 for 1.4 (1.74) and 4.16 for 2.4.
  EXPECT_EQ(after({5, 4}).choose(new_row_, 1, 7), 4);
  EXPECT_EQ(after({5, 4}).choose(new_row_, 1, 3), 2);
  EXPECT_EQ(after({7, 0}).choose(new_row_, 1, 7), 0);
}

TEST_F(DraftPolicyTest, ARowWhoseDraftsFailDraftsLess) {
  measure(costs_, 0.15);
  DraftPolicy policy = after({5, 4});
  const std::int64_t fresh = policy.choose(new_row_, 1, 7);
  const std::int64_t failing = policy.choose({{20, 2}}, 1, 7);
  EXPECT_GT(failing, 0);
  EXPECT_LT(failing, fresh);
}

TEST_F(DraftPolicyTest, DraftStepsThatCostTooMuchAreNotTaken) {
  measure(costs_, 0.1);
  for (int pass = 0; pass < 3; ++pass) costs_.add_draft("own", 1, 0.9);
  EXPECT_EQ(after({5, 3}).choose(new_row_, 1, 7), 0);
}

TEST_F(DraftPolicyTest, DraftsAreTriedEverLessOftenWhileNothingHolds) {
  measure(costs_, 0.1);
  DraftPolicy policy = after({2, 0});
  std::vector<std::int64_t> tries;
  for (std::int64_t token = 0; token < 1200; ++token) {
    if (const std::int64_t count = policy.choose(new_row_, 1, 7); count > 0) {
      EXPECT_EQ(count, 2);
      tries.push_back(token);
      policy.add({2, 0});
    }
    policy.count_pass();
  }
  EXPECT_EQ(tries, (std::vector<std::int64_t>{16, 48, 112, 240, 496, 752, 1008}));
}

TEST_F(DraftPolicyTest, TriesThatHoldBringDraftsBack) {
  measure(costs_, 0.1);
  DraftPolicy policy("own", costs_);
  for (int pass = 0; pass < 300; ++pass) policy.add({7, 0});
  EXPECT_EQ(policy.choose(new_row_, 1, 7), 0);
  for (int time = 0; time < 6; ++time) {
    for (int pass = 0; pass < 256; ++pass) policy.count_pass();
    EXPECT_GT(policy.choose(new_row_, 1, 7), 0);
    policy.add({2, 2});
  }
  EXPECT_GT(policy.choose(new_row_, 1, 7), 0);
}

TEST_F(DraftPolicyTest, NothingIsTriedThatCouldNotGain) {
  measure(costs_, 1);
  DraftPolicy policy = after({2, 0});
  for (int pass = 0; pass < 100; ++pass) {
    EXPECT_EQ(policy.choose(new_row_, 1, 7), 0);
    policy.count_pass();
  }
}

TEST_F(DraftPolicyTest, TheNumberOfDraftsStaysWhileItIsNearlyTheBest) {
  measure(costs_, 0.2);
  DraftPolicy policy = after({5, 4});
  EXPECT_EQ(policy.choose(new_row_, 1, 7), 4);
  for (int pass = 0; pass < 15; ++pass) costs_.add_pass(1, 5, 1.95);  // 1.72 to 1.74
  EXPECT_EQ(policy.choose(new_row_, 1, 7), 4);
  for (int pass = 0; pass < 15; ++pass) costs_.add_pass(1, 5, 2.1);  // 1.60
  EXPECT_EQ(policy.choose(new_row_, 1, 7), 2);
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
