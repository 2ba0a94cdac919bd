// passes BUNDLE ROWS KV_BYTES: runs passes on a slot stitcher and prints their logits.
//
// Each line of stdin is one operation of tests/support/models/known_tokens.py: {"begin": a row and
// its prompt}, {"step": rows, each with the tokens that it feeds}, {"truncate": [row, length]} or
// {"release": row}. Prints for each step a JSON array: the logits of every token, in hexadecimal.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "stitching/slot_stitcher.h"

namespace {

using namespace skipdec::runtime;
using nlohmann::json;

std::string hexadecimal(const float* values, std::int64_t count) {
  static const char* const digits = "0123456789abcdef";
  const void* const first = values;
  const auto* const bytes = static_cast<const unsigned char*>(first);
  std::string text;
  for (std::size_t place = 0; place < static_cast<std::size_t>(count) * sizeof(float); ++place) {
    text += digits[bytes[place] >> 4];
    text += digits[bytes[place] & 15];
  }
  return text;
}

class Run {
 public:
  Run(const std::string& path, std::int64_t rows, std::int64_t kv_bytes)
      : bundle_(Bundle::open(path, Verify::kGraphs)),
        backend_(Backend::open(bundle_, one_thread())),
        engines_(Engines::load(bundle_->manifest(), *backend_)),
        stitcher_(engines_, bundle_->manifest(),
                  {rows, bundle_->manifest().model.max_seq_len, kv_bytes}, false) {}

  void run(const json& operation) {
    if (operation.contains("begin")) return begin(operation["begin"]);
    if (operation.contains("step")) return step(operation["step"]);
    if (operation.contains("release")) return stitcher_.release(operation["release"]);
    stitcher_.truncate(operation["truncate"][0], operation["truncate"][1]);
  }

 private:
  static SessionOptions one_thread() {
    SessionOptions options;
    options.threads = 1;
    return options;
  }

  SchedulePointer schedule(const json& row) {
    const std::string text = row["schedule"];
    if (schedules_.count(text) == 0) schedules_[text] = bundle_->schedules().resolve(text, 8);
    return schedules_[text];
  }

  void begin(const json& row) {
    PromptRow prompt;
    prompt.row = row["row"];
    prompt.tokens = row["tokens"].get<TokenSpan>();
    prompt.schedule = schedule(row);
    prompt.reservation = reservation_of(
        *prompt.schedule, static_cast<std::int64_t>(prompt.tokens.size()), row["max_tokens"]);
    stitcher_.prefill({&prompt});
  }

  void step(const json& rows) {
    std::vector<StepRow> steps;
    for (const json& row : rows) {
      StepRow& step = steps.emplace_back();
      step.row = row["row"];
      step.tokens = row["tokens"].get<TokenSpan>();
      step.position = row["position"];
      const std::int64_t index = row["index"];
      for (std::size_t offset = 0; offset < step.tokens.size(); ++offset) {
        step.plans.push_back(&schedule(row)->plan(index + static_cast<std::int64_t>(offset)));
      }
    }
    json logits = json::array();
    for (const float* const each : stitcher_.step(steps)) {
      logits.push_back(hexadecimal(each, bundle_->manifest().model.vocab_size));
    }
    std::cout << logits << '\n';
  }

  std::shared_ptr<const Bundle> bundle_;
  std::shared_ptr<Backend> backend_;
  Engines engines_;
  SlotStitcher stitcher_;
  std::map<std::string, SchedulePointer> schedules_;
};

}  // namespace

int main(int count, char** words) {
  try {
    if (count != 4) throw std::invalid_argument("BUNDLE ROWS KV_BYTES");
    Run run(words[1], std::stoll(words[2]), std::stoll(words[3]));
    for (std::string line; std::getline(std::cin, line);) run.run(json::parse(line));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
