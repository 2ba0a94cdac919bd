// Tests which layers tokens run, and which schedules are refused.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "hollow_bundle.h"
#include "refusals.h"
#include "schedule/schedules.h"

namespace skipdec::runtime {
namespace {

using nlohmann::json;

const std::string kSubject = "bundles/hollow/schedule.json";
const std::string kOwn = "table:max=6,min=2,warmup=1,horizon=4,table=6/3/3/2";

Schedules parsed(const json& document) { return Schedules::parse(sealed(document), 6, kSubject); }

// An invalid plan of three layers as in schedule.json, and words of its error.
struct Hole {
  const char* segments;
  const char* prompt;
  const char* words;
};

class NoSchedule : public testing::TestWithParam<Hole> {};

Schedule made_of(const Hole& hole) {
  std::vector<Segment> segments;
  for (const json& segment : json::parse(hole.segments))
    segments.push_back({segment[0].get<std::int64_t>(), segment[1].get<LayerPlan>()});
  const json rule = json::parse(hole.prompt);
  PromptRule prompt;
  if (!rule.is_null())
    prompt = {rule[0].get<std::vector<std::int64_t>>(), rule[1].get<std::int64_t>()};
  return {3, segments, prompt, ""};
}

TEST_P(NoSchedule, IsRefusedWithTokenAndLayer) {
  const std::string words = refusal([] { made_of(GetParam()); });
  EXPECT_NE(words.find(GetParam().words), std::string::npos) << words;
}

constexpr Hole kHoles[] = {
    {"[]", "null", "has 0 segments"},
    {"[[1, [0, 1]]]", "null", "begins at generated token 1"},
    {"[[0, []]]", "null", "token 0 runs no layers"},
    {"[[0, [0, 3]]]", "null", "token 0 runs layer 3; allowed there: 1 to 2"},
    {"[[0, [-1]]]", "null", "token 0 runs layer -1"},
    {"[[0, [1, 1]]]", "null", "token 0 runs layer 1; allowed there: 2 to 2"},
    {"[[0, [2, 1]]]", "null", "token 0 runs layer 1"},
    {"[[0, [0, 1]], [2, [0]], [2, [0]]]", "null", "token 2; allowed behind 2"},
    {"[[0, [0, 1]], [2097152, [0]]]", "null", "begins at generated token 2097152"},
    {"[[0, [0, 1, 2]], [2, [0, 1]], [5, [0, 2]]]", "null", "token 5 runs layer 2, which token 4"},
    {"[[0, [0]]]", "[[-1, -1], 1]", "the prompt's rule is for 2 layers; expected: 3"},
    {"[[0, [0]]]", "[[-1, 1, 1], 0]", "the prompt's denominator is 0"},
    {"[[0, [0]]]", "[[-1, -2, 1], 4]", "numerators is -2"},
    {"[[0, [0, 1]]]", "[[-1, 3, 1], 4]", "layer 1, which the last tokens of a prompt do not"},
};

INSTANTIATE_TEST_SUITE_P(All, NoSchedule, testing::ValuesIn(kHoles));

TEST(Schedules, SharesAPresetWhileItIsUsed) {
  const Schedules schedules = parsed(hollow_schedule());
  const SchedulePointer first = schedules.resolve("2x", 1);
  EXPECT_EQ(schedules.resolve("2x:horizon=4", 1), first);
  EXPECT_NE(schedules.resolve("2x:horizon=5", 1), first);
}

TEST(Schedules, RunsAPlanThatIsGiven) {
  const Schedules schedules = parsed(hollow_schedule());
  const std::string text = sealed(hollow_schedule());
  EXPECT_EQ(schedules.resolve(text, 1)->text(), kOwn);
  const std::string plan = json{{"plan", hollow_schedule()["plan"]}}.dump();
  EXPECT_EQ(schedules.resolve(plan, 1)->text(), kOwn);
  const auto path = std::filesystem::path(testing::TempDir()) / "given.json";
  write_file(path, text);
  EXPECT_EQ(schedules.resolve(path.string(), 1)->text(), kOwn);
  EXPECT_NE(refusal([&] { schedules.resolve(path.string(), 1, false); }).find("is unknown here"),
            std::string::npos);
}

TEST(Schedules, ReadsADocumentWhoseLineFeedAShellStripped) {
  const Schedules schedules = parsed(hollow_schedule());
  const std::string text = sealed(hollow_schedule());
  ASSERT_EQ(text.back(), '\n');
  const std::string stripped = text.substr(0, text.size() - 1);
  EXPECT_EQ(schedules.resolve(stripped, 1)->text(), kOwn);
  const auto path = std::filesystem::path(testing::TempDir()) / "stripped.json";
  write_file(path, stripped);
  EXPECT_EQ(schedules.resolve(path.string(), 1)->text(), kOwn);
  std::string changed = stripped;
  changed.replace(changed.find("6/3/3/2"), 7, "6/3/2/2");
  EXPECT_NE(refusal([&] { schedules.resolve(changed, 1); }).find("the file was changed"),
            std::string::npos);
}

struct Asked {
  std::string text, words;
};

class RefusedSchedule : public testing::TestWithParam<Asked> {};

TEST_P(RefusedSchedule, IsRefusedWithWhatIsAllowed) {
  const Schedules schedules = parsed(hollow_schedule());
  const std::string words = refusal([&] { schedules.resolve(GetParam().text, 8); });
  EXPECT_NE(words.find(GetParam().words), std::string::npos) << words;
}

const std::string kCommand = "skipdec schedule show SCHEDULE --layers 6";
const std::vector<Asked> kAsked{
    {"5x", kCommand},
    {"linear:max=4,min=2", kCommand},
    {"2x:placement=bottom", kCommand},
    {"2x:horizon=", kCommand},
    {"2x:horizon=-4", kCommand},
    {"full:horizon=4", kCommand},
    {"2x:horizon=0", "horizon is 0; allowed: 1 to 1048576"},
    {"2x:horizon=1048577", "horizon is 1048577"},
    {"\xff\xfe", kCommand},
    {"{", "is not JSON"},
    {"{}", "plan: is missing; make it anew: " + kCommand},
    {R"({"plan": {"num_layers": 7}})", "plan.num_layers: is 7; the bundle has 6"},
    {R"({"plan": {}, "digest": "x"})", "is not on exactly one line"},
    {"/nowhere/plan.json", "schedule /nowhere/plan.json | can't be read"},
    {"/dev/zero.json", "can't be read"},
};

INSTANTIATE_TEST_SUITE_P(All, RefusedSchedule, testing::ValuesIn(kAsked));

struct Hostile {
  std::string place;
  json value;
  std::string words;
};

class HostileSchedules : public testing::TestWithParam<Hostile> {};

TEST_P(HostileSchedules, AreRefusedInWordsThatNameThePlace) {
  const Hostile& hostile = GetParam();
  json document = hollow_schedule();
  document[json::json_pointer(hostile.place)] = hostile.value;
  const std::string words = refusal([&] { parsed(document); });
  EXPECT_EQ(words.rfind(kSubject + " | ", 0), 0U) << words;
  EXPECT_NE(words.find(hostile.words), std::string::npos) << words;
}

const std::vector<Hostile> kHostile{
    {"/other", 1, "other: is unknown"},
    {"/plan/other", 1, "plan.other: is unknown"},
    {"/plan/num_layers", 7, "plan.num_layers: is 7; the bundle has 6"},
    {"/plan/num_layers", 1U << 31, "plan.num_layers: is 2147483648; allowed: 1 to 4096"},
    {"/plan/horizon", 0, "plan.horizon: is 0; allowed: 1 to 1048576"},
    {"/plan/text", 3, "plan.text: is 3; allowed: a text"},
    {"/plan/segments", json::array(), "plan: has 0 segments"},
    {"/plan/segments/1/start", 0, "plan: a segment begins at generated token 0"},
    {"/plan/segments/1/layers/0", 6, "plan.segments.1.layers: is 6; allowed: 0 to 5"},
    {"/plan/segments/2/layers", {1}, "runs layer 1, which token 2 did not"},
    {"/plan/prompt", {{"denominator", 1}, {"numerators", {1}}}, "are 1; expected: 6"},
    {"/plan/prompt", {{"denominator", 0}, {"numerators", {1}}}, "plan.prompt.denominator: is 0"},
    {"/presets", 1, "presets: is 1"},
    {"/presets/2x/prompt", 1, "presets.2x.prompt: is not null"},
    {"/presets/2x/segments/0/start", 1, "presets.2x.segments.0.start: is 1"},
    {"/presets/2x/segments/1/after", {1}, "after: has not two numbers"},
    {"/presets/2x/segments/1/after/1", 0, "after: is 0; allowed: 1 to 2147483648"},
    {"/presets/2x/segments/1/after/0", 5, "after: is 4; allowed: 5 to"},
    {"/plan/text", "full", "plan: is not what its schedule stands for"},
    {"/presets/2x/text", "full", "presets: are not those of a model of 6 layers"},
    {"/schedule/horizon", 5, "schedule.table: has 4 budgets; allowed: one a token of the horizon"},
    {"/schedule/warmup_layers", 2, "schedule.min_exit_layer: is 2; allowed with placement top: 3"},
    {"/schedule/placement", "bottom", "plan: is not what its schedule stands for"},
    {"/schedule/decay", "other", "schedule.decay: is \"other\"; allowed: linear, cosine, power"},
    {"/schedule/power", 2, "schedule.power: is 2; table has none"},
    {"/schedule/prompt", true, "schedule.prompt: is true; allowed: a text"},
    {"/schedule/num_layers", 6.0, "schedule.num_layers: is 6.0; allowed: 1 to 4096"},
    {"/presets/2x/segments/2/after/0", 0, "is less than that of the segment before"},
    {"/presets/2x/segments/2/layers", {1}, "presets.2x: generated token 2 runs layer 1"},
    {"/presets/2x/segments", json::array(), "presets.2x: has 0 segments"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileSchedules, testing::ValuesIn(kHostile));

}  // namespace
}  // namespace skipdec::runtime
