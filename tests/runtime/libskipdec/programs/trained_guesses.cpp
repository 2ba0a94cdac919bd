// Writes what a bundle's draft layer guesses in known texts, which run as one batch.
//
//     trained_guesses BUNDLE < TEXTS
//
// TEXTS: a line of JSON for each, {"prompt": TOKENS, "completion": TOKENS}. Writes an array of
// {"text": TOKENS, "entries": POSITIONS, "guesses": TOKENS}: the tokens of a text so far, the
// positions of those that the layer was shown, and the three tokens that it guesses next. Passes
// accept none to three of their tokens; the layer guesses nothing after every fifth pass of a row.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "stitching/slot_stitcher.h"

namespace {

using namespace skipdec::runtime;
using nlohmann::json;

constexpr std::int64_t kGuesses = 3;

struct Row {
  PromptRow prompt;
  TokenSpan text, entries, guesses;
  std::int64_t written = 0, passed = 0;

  bool guesses_after(std::int64_t pass) const { return (pass + prompt.row) % 5 != 4; }
  std::int64_t room() const { return static_cast<std::int64_t>(text.size()) - written - 1; }
};

class Texts {
 public:
  explicit Texts(const std::string& path)
      : bundle_(Bundle::open(path, Verify::kFull)),
        backend_(Backend::open(bundle_, {})),
        engines_(Engines::load(bundle_->manifest(), *backend_)),
        stitcher_(engines_, bundle_->manifest(),
                  {8, bundle_->manifest().model.max_seq_len, 1 << 28}, false, true) {
    engines_.load_trained_drafts(*bundle_, *backend_);
  }

  void add(const json& line) {
    Row row;
    row.prompt.row = static_cast<SlotCache::Row>(rows_.size());
    row.text = row.prompt.tokens = line.at("prompt").get<TokenSpan>();
    const auto completion = line.at("completion").get<TokenSpan>();
    const auto length = static_cast<std::int64_t>(row.text.size());
    const auto count = static_cast<std::int64_t>(completion.size());
    row.text.insert(row.text.end(), completion.begin(), completion.end());
    row.prompt.schedule = bundle_->schedules().resolve("full", count);
    row.prompt.reservation = reservation_of(*row.prompt.schedule, length, count, true);
    row.written = length + 1;
    row.passed = length - 1;
    rows_.push_back(row);
  }

  json run() {
    std::vector<const PromptRow*> prompts;
    for (const Row& row : rows_) prompts.push_back(&row.prompt);
    stitcher_.prefill(prompts);
    const auto has_room = [](const Row& row) { return row.room() > kGuesses; };
    for (std::int64_t pass = 0; std::all_of(rows_.begin(), rows_.end(), has_room); ++pass) {
      draft(pass);
      feed(pass);
    }
    return found_;
  }

 private:
  void draft(std::int64_t pass) {
    for (std::int64_t step = 0; step < kGuesses; ++step) {
      std::vector<DraftRow> fed;
      std::vector<Row*> drafting;
      for (Row& row : rows_) {
        if (!row.guesses_after(pass)) continue;
        if (step == 0) row.guesses.clear();
        const auto last = static_cast<std::size_t>(row.written - 1);
        fed.push_back({row.prompt.row, step == 0 ? row.text[last] : row.guesses.back(),
                       row.written - 1 + step});
        drafting.push_back(&row);
      }
      const std::vector<const float*>& logits = stitcher_.draft_trained(fed);
      const TokenSpan& token_ids = stitcher_.trained_token_ids();
      for (std::size_t one = 0; one < fed.size(); ++one) {
        const float* const best = std::max_element(logits[one], logits[one] + token_ids.size());
        drafting[one]->guesses.push_back(token_ids[static_cast<std::size_t>(best - logits[one])]);
      }
    }
    for (Row& row : rows_) {
      if (!row.guesses_after(pass)) continue;
      while (++row.passed < row.written) row.entries.push_back(row.passed);
      const TokenSpan written(row.text.begin(), row.text.begin() + row.written);
      found_.push_back({{"text", written}, {"entries", row.entries}, {"guesses", row.guesses}});
    }
  }

  // Feeds each row's last token, then some right ones and a wrong one.
  void feed(std::int64_t pass) {
    std::vector<StepRow> steps;
    for (Row& row : rows_) {
      const std::int64_t right = (pass + row.prompt.row * 3) % 4;
      const auto first = row.text.begin() + row.written - 1;
      StepRow step;
      step.row = row.prompt.row;
      step.position = row.passed = row.written - 1;
      step.tokens.assign(first, first + right + 1);
      step.tokens.push_back(0);
      step.plans.assign(step.tokens.size(), &row.prompt.schedule->plan(0));
      steps.push_back(step);
      row.written += right + 1;
    }
    stitcher_.step(steps);
    for (const Row& row : rows_) stitcher_.truncate(row.prompt.row, row.written - 1);
  }

  std::shared_ptr<const Bundle> bundle_;
  std::shared_ptr<Backend> backend_;
  Engines engines_;
  SlotStitcher stitcher_;
  std::vector<Row> rows_;
  json found_ = json::array();
};

}  // namespace

int main(int count, char** words) {
  try {
    if (count != 2) throw std::invalid_argument("BUNDLE");
    Texts texts(words[1]);
    for (std::string line; std::getline(std::cin, line);) texts.add(json::parse(line));
    std::cout << texts.run() << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
