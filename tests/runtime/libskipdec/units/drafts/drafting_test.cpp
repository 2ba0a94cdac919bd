#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic_model.h"
#include "refusals.h"
#include "scheduling/drafting/draft_config.h"
#include "scheduling/drafting/draft_policy.h"
#include "scheduling/drafting/draft_resolver.h"
#include "scheduling/drafting/ngrams/ngram_table.h"

namespace skipdec::runtime {
namespace {

// Returns the shortest text that is read as ``config``.
std::string shortest(const std::optional<DraftConfig>& config) {
  if (!config) return "off";
  std::string text;
  for (const DraftPart& part : config->parts) text += (text.empty() ? "" : "+") + part.text();
  if (config->tokens != DraftConfig{}.tokens) text += ",tokens=" + std::to_string(config->tokens);
  if (!config->adapt) text += ",adapt=no";
  if (!config->exact) text += ",exact=no";
  return text;
}

struct Reading {
  std::string text, expected;
};

class DraftTextTest : public ::testing::TestWithParam<Reading> {};

TEST_P(DraftTextTest, IsReadAsItsShortestForm) {
  const Reading& reading = GetParam();
  for (const std::string& text : {reading.text, reading.expected})
    EXPECT_EQ(shortest(DraftConfig::parse(text)), reading.expected);
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
        Reading{"", "'' is unknown; allowed: own, lookup, ends:N, first:N, trained, off or auto"},
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
    manifest_.model.num_layers = support::kLayers;
  }
  std::string words(const std::string& text) const {
    return refusal([&] { resolve_draft(text, manifest_); });
  }

  support::ArithmeticBundle bundle_;
  Manifest manifest_;
};

TEST_F(DraftRefusalTest, BundlesWhoseTextsMayDifferAreRefusedUnlessExactIsNo) {
  EXPECT_EQ(words("own"), "");
  manifest_.foreign_products = {"int8-block", "int4"};
  EXPECT_NE(words("own").find("those of int8-block and int4 weights"), std::string::npos);
  manifest_.uses_skipdec_kernels = false;
  EXPECT_NE(words("own").find("needs skipdec's kernels"), std::string::npos);
  for (const char* allowed : {"own,exact=no", "off", ""}) EXPECT_EQ(words(allowed), "");
}

TEST_F(DraftRefusalTest, ADraftRunsFewerLayersThanTheModel) {
  EXPECT_EQ(words("own+first:5"), "");
  EXPECT_EQ(words("own+first:6"),
            "draft | first:6 runs 6 layers of 6; allowed: 1 to 5, and 2 to 4 are fast");
}

TEST_F(DraftRefusalTest, TrainedDraftsNeedADraftLayer) {
  EXPECT_EQ(words("trained"),
            "draft | trained needs a draft layer, which the bundle does not have; train one with "
            "`skipdec tune --draft-layer` and export the model with --draft-layer");
}

TEST_F(DraftRefusalTest, AutoStandsForTheDraftsOfTheManifest) {
  EXPECT_EQ(shortest(resolve_draft("auto", manifest_)), "own");
  manifest_.draft = "own+ends:3";
  EXPECT_EQ(shortest(resolve_draft(" AUTO ", manifest_)), "own+ends:3");
  manifest_.draft = "off";
  EXPECT_FALSE(resolve_draft("auto", manifest_));
  manifest_.draft = "onw";
  EXPECT_NE(words("auto").find("draft | 'onw' is unknown"), std::string::npos);
}

TEST_F(DraftRefusalTest, DraftsOfLayersThatAScheduleNeverRunsCauseAWarning) {
  const std::vector<std::pair<std::string, bool>> drafts{
      {"own", false}, {"own+ends:3", false}, {"ends:5", true}, {"own+first:2", true}};
  const Schedule shallow(support::kLayers, {{0, {0, 3, 4, 5}}, {2, {0, 5}}}, {}, "4 layers");
  for (const auto& [text, is_unused] : drafts) {
    const auto config = resolve_draft(text, manifest_);
    EXPECT_EQ(unused_draft_warning(*config, *bundle_.schedules().resolve("full", 1)), "") << text;
    const std::string words = unused_draft_warning(*config, shallow);
    EXPECT_EQ(words.find("needs layers that schedule 4 layers never runs") != std::string::npos,
              is_unused)
        << text << ": " << words;
  }
}

TEST_F(DraftRefusalTest, ARequestMayOnlySwitchDraftsOff) {
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

TEST(NGramTableTest, AFullTableEvictsTheFirstNGram) {
  NGramTable table(3);
  table.count({1, 2, 3}, 0);  // adds 1, then 2 and 1 2
  table.count({7, 8}, 0);
  EXPECT_EQ(table.size(), 3);
  EXPECT_EQ(proposed(table, {1}, 1), TokenSpan{});
  EXPECT_EQ(proposed(table, {7}, 1), TokenSpan{8});
}

TEST(NGramTableTest, EachClientHasATableAndTheLeastRecentIsEvicted) {
  NGramTables tables(true);
  for (std::int64_t client = 0; client < 32; ++client) {
    tables.of(std::to_string(client)).count({1, client}, 0);
  }
  EXPECT_EQ(proposed(tables.of("0"), {1}, 1), TokenSpan{0});
  tables.of("new");
  EXPECT_EQ(proposed(tables.of("0"), {1}, 1), TokenSpan{0});
  EXPECT_EQ(proposed(tables.of("1"), {1}, 1), TokenSpan{});  // evicted by the new client
}

// Tests a policy for n-grams with two classes of evidence, and for layers whose steps cost 0.2.
class DraftPolicyTest : public ::testing::Test {
 protected:
  DraftPolicyTest() {
    policy_.add_source(SourceAcceptance("own", {0.5, 0.5}));
    policy_.add_source(SourceAcceptance("ends:3", {0.5}, 0.2));
  }

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

TEST_F(DraftPolicyTest, DraftsThatAreNeverAcceptedCostAtMostThreePercent) {
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
      policy_.source(source).add({0}, 1, 0, row);
    }
    policy_.count_pass(1, 1, seconds);
    total += seconds;
  }
  EXPECT_LE(total, 1.03 * kPasses);
}

TEST_F(DraftRefusalTest, BytesOfEnginesDoNotOverflow) {
  Manifest manifest = bundle_.manifest();
  for (EngineSpec* spec : {&manifest.embed, &manifest.head, &manifest.layers[0]})
    spec->step_bytes = std::numeric_limits<std::int64_t>::max();
  const auto config = resolve_draft("first:1,exact=no", manifest);
  manifest.draft_head.reset();
  EXPECT_DOUBLE_EQ(byte_share(manifest, config->parts.front()), 1);
}

TEST(PassCostsTest, TheCostExcludesDraftStepsThatBindEngines) {
  PassCosts costs;
  costs.add_pass(1, 1, 1);
  costs.add_pass(1, 1, 1);
  for (int step = 0; step < 2; ++step) costs.add_draft("first:1", 1, 8, true);
  EXPECT_EQ(costs.draft_steps(), 2);
  EXPECT_EQ(costs.draft_seconds(), 16);
  EXPECT_EQ(costs.draft_cost("first:1", 1, 0.25), 0.25);
  for (int step = 0; step < 2; ++step) costs.add_draft("first:1", 1, 0.5);
  EXPECT_EQ(costs.draft_cost("first:1", 1, 0.25), 0.5);
}

}  // namespace
}  // namespace skipdec::runtime
