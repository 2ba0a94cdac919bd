// Tests that a trained draft layer computes what LiteralDrafts does, whatever ran before it or in
// the same batch.
#include "stitching/trained_drafts.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "arithmetic_model.h"
#include "literal_drafts.h"
#include "scheduling/drafters/layers_drafter.h"
#include "scheduling/drafting/draft_resolver.h"
#include "stitching/slot_stitcher.h"

namespace skipdec::runtime {
namespace {

using support::ArithmeticBackend;
using support::ArithmeticBundle;
using support::LiteralDrafts;

constexpr std::int64_t kMaxTokens = 24;

// A row whose whole text is known, and whose first ``written`` tokens are drawn.
struct KnownRow {
  PromptRow prompt;
  TokenSpan text;
  std::size_t written = 0;
  std::int64_t passed = 0;   // the position of the first token that the last pass fed
  TokenSpan entries;         // positions of tokens that the draft layer was shown
  bool has_drafted = false;  // since the last pass

  std::int64_t room() const { return static_cast<std::int64_t>(text.size() - written) - 1; }
  const Schedule& schedule() const { return *prompt.schedule; }
  const LayerPlan* plan(std::size_t position) const {
    return &schedule().plan(static_cast<std::int64_t>(position - prompt.tokens.size()));
  }
  // Notes that a draft layer is shown the tokens that the last pass accepted, and the one drawn.
  void show() {
    for (std::int64_t position = passed + 1; !has_drafted && position < std::int64_t(written);
         ++position) {
      entries.push_back(position);
    }
    has_drafted = true;
  }
};

class TrainedDraftsTest : public ::testing::Test {
 protected:
  explicit TrainedDraftsTest(bool takes_one_row = false) : bundle_(takes_one_row) {
    engines_.load_trained_drafts(bundle_, backend_);
  }

  // Returns a row of which ``copies`` more share the prompt.
  KnownRow made(const TokenSpan& prompt, const std::string& schedule, std::int64_t copies = 0) {
    KnownRow row;
    row.prompt.row = next_++;
    row.prompt.tokens = row.text = prompt;
    row.prompt.schedule = bundle_.schedules().resolve(schedule, kMaxTokens);
    const auto length = static_cast<std::int64_t>(prompt.size());
    row.prompt.reservation = reservation_of(row.schedule(), length, kMaxTokens, true);
    row.written = prompt.size() + 1;
    row.passed = length - 1;
    for (std::int64_t copy = 0; copy < copies; ++copy) row.prompt.copies.push_back(next_++);
    return row;
  }

  // Runs the prompts of rows together.
  void begin(const std::vector<KnownRow>& rows) {
    std::vector<const PromptRow*> prompts;
    for (const KnownRow& row : rows) prompts.push_back(&row.prompt);
    stitcher_.prefill(prompts);
    for (const KnownRow& row : rows) add(row);
  }

  // Runs the prompt of a row in chunks of eight tokens, after the prefix of it that is cached.
  void begin_in_chunks(const KnownRow& row) {
    restored_ += stitcher_.begin_chunks(row.prompt);
    while (stitcher_.chunk(8).rows() == 0) {
    }
    add(row);
  }

  void add(const KnownRow& row) {
    for (std::size_t copy = 0; copy <= row.prompt.copies.size(); ++copy) {
      KnownRow& added = rows_[row.prompt.row + static_cast<std::int64_t>(copy)] = row;
      for (std::int64_t token = 0; token < kMaxTokens; ++token)
        added.text.push_back(5 + 2 * draw(46));
    }
  }

  // Lets each row draft as many tokens as ``counts`` says, one step after the other, and compares
  // all logits with those of LiteralDrafts.
  void draft(const std::map<SlotCache::Row, std::int64_t>& counts) {
    std::map<SlotCache::Row, TokenSpan> guesses;
    std::map<SlotCache::Row, std::vector<std::vector<float>>> found;
    for (std::int64_t step = 0;; ++step) {
      std::vector<DraftRow> fed;
      for (const auto& [number, count] : counts) {
        const KnownRow& row = rows_.at(number);
        if (step >= count) continue;
        if (step > 0) guesses[number].push_back(best(found[number].back()));
        const std::int64_t token = step == 0 ? row.text[row.written - 1] : guesses[number].back();
        fed.push_back({number, token, static_cast<std::int64_t>(row.written) - 1 + step});
      }
      if (fed.empty()) break;
      const std::vector<const float*>& logits = stitcher_.draft_trained(fed);
      ASSERT_EQ(logits.size(), fed.size());
      for (std::size_t one = 0; one < fed.size(); ++one) {
        found[fed[one].row].emplace_back(logits[one], logits[one] + token_ids().size());
      }
    }
    for (auto& [number, logits] : found) {
      KnownRow& row = rows_.at(number);
      row.show();
      const TokenSpan written(row.text.begin(), row.text.begin() + std::ptrdiff_t(row.written));
      EXPECT_EQ(logits, literal_.logits(written, row.prompt.tokens.size(), row.schedule(),
                                        row.entries, guesses[number]))
          << "row " << number << " after " << row.written << " tokens";
      compared_ += logits.size();
    }
  }

  // Runs a pass in which each row feeds ``right`` tokens of its text after the last one, and then
  // ``wrong`` others.
  void pass(const std::map<SlotCache::Row, std::pair<std::int64_t, std::int64_t>>& guesses) {
    std::vector<StepRow> steps;
    for (auto& [number, row] : rows_) {
      const auto& [right, wrong] = guesses.at(number);
      StepRow step;
      step.row = number;
      step.position = row.passed = static_cast<std::int64_t>(row.written) - 1;
      for (std::int64_t offset = 0; offset <= right + wrong; ++offset) {
        const std::size_t place = row.written - 1 + static_cast<std::size_t>(offset);
        step.tokens.push_back((row.text[place] + (offset > right ? 1 : 0)) % 97);
        step.plans.push_back(row.plan(place));
      }
      steps.push_back(step);
      row.written += static_cast<std::size_t>(right) + 1;
      row.has_drafted = false;
    }
    stitcher_.step(steps);
    for (auto& [number, row] : rows_) {
      stitcher_.truncate(number, static_cast<std::int64_t>(row.written) - 1);
    }
  }

  void end(SlotCache::Row row) {
    stitcher_.release(row);
    rows_.erase(row);
  }

  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(chance_() % static_cast<std::uint64_t>(below));
  }
  const TokenSpan& token_ids() const { return stitcher_.trained_token_ids(); }
  std::int64_t best(const std::vector<float>& logits) const {
    const auto found = std::max_element(logits.begin(), logits.end()) - logits.begin();
    return token_ids()[static_cast<std::size_t>(found)];
  }

  std::mt19937 chance_{7};  // NOLINT(bugprone-random-generator-seed): repeatable
  ArithmeticBundle bundle_;
  ArithmeticBackend backend_;
  Engines engines_ = Engines::load(bundle_.manifest(), backend_);
  SlotStitcher stitcher_{engines_, bundle_.manifest(), {8, 64, 1 << 22}, true, true};
  LiteralDrafts literal_{bundle_};
  std::map<SlotCache::Row, KnownRow> rows_;
  SlotCache::Row next_ = 0;
  std::int64_t restored_ = 0;  // tokens of prompts that were found as prefixes
  std::size_t compared_ = 0;   // drafted tokens
};

class ChainsTest : public TrainedDraftsTest,
                   public ::testing::WithParamInterface<std::tuple<bool, std::string>> {
 protected:
  ChainsTest() : TrainedDraftsTest(std::get<0>(GetParam())) {}

  // Begins one to four rows, some with a prompt that another row had.
  void begin_some() {
    std::vector<KnownRow> begun;
    for (std::int64_t left = 1 + draw(2); left > 0; --left) {
      TokenSpan prompt;
      const std::int64_t length = 1 + draw(30);
      for (std::int64_t token = 0; token < length; ++token) prompt.push_back(5 + token);
      begun.push_back(made(prompt, std::get<1>(GetParam()), draw(2)));
    }
    if (begun.size() > 1 || draw(2) == 0) {
      begin(begun);
    } else {
      begin_in_chunks(begun.front());
    }
  }
};

// Returns a schedule by which the layers that its first token bypasses run a part of each prompt.
std::string schedule_of_prompts() {
  nlohmann::json schedule = nlohmann::json::parse(support::falling_schedule(4, 2, 4));
  schedule["prompt"] = "decay";
  return schedule.dump();
}

INSTANTIATE_TEST_SUITE_P(Layers, ChainsTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values("full",
                                                              support::falling_schedule(6, 2, 4),
                                                              schedule_of_prompts())));

TEST_P(ChainsTest, LogitsEqualThoseOfLiteralDrafts) {
  for (int round = 0; round < 150; ++round) {
    while (rows_.size() < 4) begin_some();
    std::map<SlotCache::Row, std::int64_t> counts;
    std::map<SlotCache::Row, std::pair<std::int64_t, std::int64_t>> guesses;
    for (const auto& [number, row] : rows_) {
      if (draw(4) > 0) counts[number] = std::min(draw(4), row.room());
      const std::int64_t right = std::min(draw(4), row.room());
      guesses[number] = {right, std::min(draw(3), row.room() - right)};
    }
    if (draw(5) > 0) draft(counts);
    if (draw(5) == 0) draft(counts);  // again: as if a pass had failed
    pass(guesses);
    const auto rows = rows_;
    for (const auto& [number, row] : rows) {
      if (row.room() < 0 || draw(12) == 0) end(number);
    }
  }
  EXPECT_GT(compared_, 300U);
  if (std::get<1>(GetParam()) == "full") {
    EXPECT_GT(restored_, 0);
  }
}

// Runs rows with different samplers, of which the last row ends first.
class TrainedDrafterTest : public TrainedDraftsTest {
 protected:
  static constexpr std::size_t kRows = 4;
  static constexpr std::int64_t kMost = 4;

  void SetUp() override {
    for (std::size_t number = 0; number < kRows; ++number) {
      begin({made({5, 6, 7}, number == 1 ? support::falling_schedule(5, 2, 2) : "full")});
      Request& request = requests_[number];
      request.prompt = {5, 6, 7};
      request.schedule = rows_.at(std::int64_t(number)).prompt.schedule;
      request.max_tokens = request.params.max_tokens = number == 3 ? 6 : kMaxTokens;
      request.params.ignore_eos = true;
      request.params.seed = number;
    }
    requests_[0].params.temperature = 0;
    requests_[1].params.temperature = 3;
    requests_[2].params.temperature = 0;
    requests_[2].params.min_tokens = 3;
    requests_[2].params.repetition_penalty = 1.3;
    for (std::int64_t token = 0; token < support::kVocabulary; token += 2)
      requests_[2].params.stop_token_ids.push_back(token);
    for (std::size_t number = 0; number < kRows; ++number) {
      const ModelSpec& model = bundle_.manifest().model;
      sequences_.push_back(std::make_unique<Sequence>(requests_[number], 0, model, nullptr, 0));
      drafts_[number].row = {std::int64_t(number), 0, &requests_[number], sequences_.back().get()};
    }
  }

  // Lets the rows' sequences draw the written tokens of their texts.
  void write() {
    for (auto& [number, row] : rows_) {
      Sequence& sequence = *sequences_[std::size_t(number)];
      const std::size_t drawn = row.prompt.tokens.size() + std::size_t(sequence.num_tokens());
      for (std::size_t place = drawn; place < row.written; ++place) {
        std::vector<float> logits(support::kVocabulary);
        logits[std::size_t(row.text[place])] = 1e6F;
        Delta delta;
        sequence.accept(logits.data(), support::kLayers, 0, delta);
        ASSERT_EQ(delta.token_id, row.text[place]);
      }
    }
  }

  // Returns the tokens that the rows' samplers choose from the logits of LiteralDrafts.
  TokenSpan chosen(KnownRow& row, const Sequence& sequence, std::int64_t count) {
    row.show();
    const TokenSpan written(row.text.begin(), row.text.begin() + std::ptrdiff_t(row.written));
    TokenSpan guesses;
    for (std::int64_t place = 0; place < count; ++place) {
      const auto logits = literal_.logits(written, 3, row.schedule(), row.entries, guesses).back();
      guesses.push_back(sequence.sampler().propose(logits.data(), token_ids(), place));
    }
    return guesses;
  }

  Request requests_[kRows];
  std::vector<std::unique_ptr<Sequence>> sequences_;
  RowDrafts drafts_[kRows];
};

TEST_F(TrainedDrafterTest, ProposesWhatSamplersChooseFromLiteralDrafts) {
  PassCosts costs;
  const auto config = resolve_draft("trained,exact=no", bundle_.manifest());
  TrainedDrafter drafter(config->parts.front(), stitcher_, costs);
  std::vector<RowDrafts*> drafting;
  std::vector<RunningRow> rows;
  for (RowDrafts& drafts : drafts_) {
    drafting.push_back(&drafts);
    rows.push_back(drafts.row);
  }
  for (const std::int64_t reached : {4, 3, 1, 0}) {  // by the row that ends first
    write();
    std::vector<Guesses> proposed(kRows);
    drafter.propose(drafting, rows, kMost, {}, proposed);
    for (std::size_t number = 0; number < kRows; ++number) {
      const std::int64_t count = number == 3 ? reached : kMost;
      EXPECT_EQ(drafter.reach(rows[number], kMost), count);
      EXPECT_EQ(proposed[number].tokens,
                chosen(rows_.at(std::int64_t(number)), *sequences_[number], count))
          << number;
    }
    pass({{0, {0, 2}}, {1, {2, 1}}, {2, {1, 1}}, {3, {reached == 3 ? 1 : 0, 0}}});
  }
  EXPECT_EQ(costs.draft_steps(), 4 * kMost);
}

}  // namespace
}  // namespace skipdec::runtime
