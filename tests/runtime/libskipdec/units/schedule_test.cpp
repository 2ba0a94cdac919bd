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

const std::string kScheduleFile = "bundles/hollow/schedule.json";
const std::string kOwn = "table:max=6,min=2,warmup=1,horizon=4,table=6/3/3/2";

Schedules parsed_schedules(const json& document) {
  return Schedules::parse(sealed(document), 6, kScheduleFile);
}

TEST(Schedules, SharesAPresetWhileItIsUsed) {
  const Schedules schedules = parsed_schedules(hollow_schedule());
  const SchedulePointer first = schedules.resolve("2x", 1);
  EXPECT_EQ(schedules.resolve("2x:horizon=4", 1), first);
  EXPECT_NE(schedules.resolve("2x:horizon=5", 1), first);
}

TEST(Schedules, ReadsADocumentWhoseLineFeedAShellStripped) {
  const Schedules schedules = parsed_schedules(hollow_schedule());
  const std::string text = sealed(hollow_schedule());
  ASSERT_EQ(text.back(), '\n');
  const std::string stripped = text.substr(0, text.size() - 1);
  EXPECT_EQ(schedules.resolve(stripped, 1)->text(), kOwn);
  const auto path = std::filesystem::path(testing::TempDir()) / "stripped.json";
  write_file(path, stripped);
  EXPECT_EQ(schedules.resolve(path.string(), 1)->text(), kOwn);
  std::string changed = stripped;
  changed.replace(changed.find("\"horizon\": 4"), 12, "\"horizon\": 5");
  EXPECT_NE(refusal([&] { schedules.resolve(changed, 1); }).find("the file was changed"),
            std::string::npos);
}

TEST(Schedules, ReadsCompactDocumentsAndByteOrderMarks) {
  const Schedules schedules = parsed_schedules(hollow_schedule());
  const std::string text = sealed(hollow_schedule());
  const std::string compact = json::parse(text).dump();
  EXPECT_EQ(schedules.resolve(compact, 1)->text(), kOwn);
  const auto path = std::filesystem::path(testing::TempDir()) / "marked.json";
  write_file(path, "\xEF\xBB\xBF" + text);
  EXPECT_EQ(schedules.resolve(path.string(), 1)->text(), kOwn);
}

TEST(Schedules, BoundsTheHorizonOfD3UnlessItIsImplied) {
  const Schedules schedules = Schedules::parse(sealed(full_schedule()), 6, kScheduleFile, 64);
  const auto resolve = [&](double alpha, std::int64_t horizon) {
    const json rule{{"decay", "d3"},       {"alpha", alpha},     {"max_exit_layer", 6},
                    {"min_exit_layer", 2}, {"horizon", horizon}, {"num_layers", 6}};
    return refusal([&] { schedules.resolve(rule.dump(), 1); });
  };
  EXPECT_EQ(resolve(0.5, 3), "");
  EXPECT_EQ(resolve(0.5, 64), "");
  EXPECT_NE(resolve(0.5, 5000).find("horizon is 5000; allowed: 1 to 64"), std::string::npos);
  EXPECT_EQ(resolve(0.999, 694), "");  // 6 * 0.999 ** 693 is the first below 3
  EXPECT_NE(resolve(0.999, 693).find("allowed: 1 to 64"), std::string::npos);
  EXPECT_NE(resolve(0.999, 695).find("allowed: 1 to 64"), std::string::npos);
}

struct BadSchedule {
  std::string text, words;
};

class RefusedSchedule : public testing::TestWithParam<BadSchedule> {};

TEST_P(RefusedSchedule, IsRefusedWithWhatIsAllowed) {
  const Schedules schedules = parsed_schedules(hollow_schedule());
  const std::string words = refusal([&] { schedules.resolve(GetParam().text, 8); });
  EXPECT_NE(words.find(GetParam().words), std::string::npos) << words;
}

// Returns the rule of hollow_schedule with ``changes``, as JSON.
std::string changed_rule(const json& changes) {
  json rule = hollow_schedule()["schedule"];
  rule.update(changes);
  return rule.dump();
}

const std::string kCommand = "skipdec schedule show SCHEDULE --layers 6";
const std::vector<BadSchedule> kBadSchedules{
    {"5x", kCommand},
    {"   ", kCommand},
    {"linear:max=4,min=2", kCommand},
    {"2x:placement=bottom", kCommand},
    {"2x:horizon=", kCommand},
    {"2x:horizon=-4", kCommand},
    {"full:horizon=4", kCommand},
    {"2x:horizon=0", "horizon is 0; allowed: 1 to 1048576"},
    {"2x:horizon=1048577", "horizon is 1048577"},
    {"\xff\xfe", kCommand},
    {"{", "is not JSON"},
    {"{}", "schedule.num_layers: is missing; make it anew: " + kCommand},
    {changed_rule({{"num_layers", 7}}), "schedule: is for 7 layers; the model has 6"},
    {changed_rule({{"table", {6, 2, 3, 2}}}),
     "token, 2, that runs layers which the one before it did not"},
    {changed_rule({{"placement", "unified"}, {"table", {6, 5, 4, 2}}}),
     "did not: a hole in their KV cache"},
    {R"({"schedule": {}, "digest": "x"})", "digest: is \"x\", the content has "},
    {R"({"schedule": {}, "digest": null})", "digest: is null, the content has "},
    {"/nowhere/plan.json", "schedule /nowhere/plan.json | can't be read"},
    {"/dev/zero.json", "can't be read"},
};

INSTANTIATE_TEST_SUITE_P(All, RefusedSchedule, testing::ValuesIn(kBadSchedules));

struct Hostile {
  std::string place;
  json value;
  std::string words;
};

class HostileSchedules : public testing::TestWithParam<Hostile> {};

TEST_P(HostileSchedules, AreRefusedWithThePlaceOfTheProblem) {
  const Hostile& hostile = GetParam();
  json document = hollow_schedule();
  document[json::json_pointer(hostile.place)] = hostile.value;
  const std::string words = refusal([&] { parsed_schedules(document); });
  EXPECT_EQ(words.rfind(kScheduleFile + " | ", 0), 0U) << words;
  EXPECT_NE(words.find(hostile.words), std::string::npos) << words;
}

const std::vector<Hostile> kHostile{
    {"/other", 1, "other: is unknown; allowed: digest, schedule"},
    {"/schedule/horizon", 5, "schedule.table: has 4 budgets; allowed: one a token of the horizon"},
    {"/schedule/warmup_layers", 2, "schedule.min_exit_layer: is 2; allowed with placement top: 3"},
    {"/schedule/decay", "other", "schedule.decay: is \"other\"; allowed: linear, cosine, power"},
    {"/schedule/power", 2, "schedule.power: is 2; table has none"},
    {"/schedule/prompt", true, "schedule.prompt: is true; allowed: a text"},
    {"/schedule/num_layers", 6.0, "schedule.num_layers: is 6.0; allowed: 1 to 4096"},
    {"/schedule/num_layers", 7, "schedule: is for 7 layers; the model has 6"},
};

INSTANTIATE_TEST_SUITE_P(All, HostileSchedules, testing::ValuesIn(kHostile));

}  // namespace
}  // namespace skipdec::runtime
