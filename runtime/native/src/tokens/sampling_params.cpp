#include "tokens/sampling_params.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "errors.h"
#include "json/shown.h"
#include "tokenizer/text/utf8.h"

namespace skipdec::runtime {
namespace {

using constants::kMaxCompletions;
using constants::kMaxStopLength;
using constants::kMaxStopStrings;
constexpr int kMaxOutside = 10;  // token ids in one message

// Collects all problems of one SamplingParams, in the order of its fields.
class Problems {
 public:
  explicit Problems(const SamplingParams& params) : params_(params) {}

  void check_numbers();
  void check_stopping();
  // Collects problems of combinations of valid fields.
  void check_together();
  void check_vocabulary(std::int64_t vocab_size, const std::vector<std::int64_t>& end_token_ids);

  const std::vector<std::string>& found() const { return found_; }

 private:
  void check_stop_strings();
  void refuse(const char* field, const std::string& value, const char* allowed) {
    found_.push_back(std::string(field) + " is " + value + "; allowed: " + allowed);
    refused_.insert(field);
  }
  void require_integer(const char* field, std::int64_t value, std::int64_t least, std::int64_t most,
                       const char* allowed) {
    if (value < least || value > most) refuse(field, std::to_string(value), allowed);
  }
  void require_number(const char* field, double value, double least, double most,
                      const char* allowed) {
    const bool is_allowed = value >= least && value <= most;  // false for NaN
    if (!is_allowed) refuse(field, shown_number(value), allowed);
  }
  bool is_right(const char* field) const { return refused_.count(field) == 0; }

  const SamplingParams& params_;
  std::vector<std::string> found_;
  std::set<std::string_view> refused_;
};

void Problems::check_numbers() {
  require_integer("max_tokens", params_.max_tokens, 0, INT64_MAX,
                  "an integer from 1, or 0: up to the model's limit");
  require_number("temperature", params_.temperature, 0, 1e6,
                 "a number from 0 to 1000000; 0 is greedy");
  require_integer("top_k", params_.top_k, -1, INT64_MAX, "an integer from 1; 0 and -1 are off");
  require_number("top_p", params_.top_p, std::numeric_limits<double>::denorm_min(), 1,
                 "a number above 0 and up to 1; 1 is off");
  require_number("min_p", params_.min_p, 0, 1, "a number from 0 to 1");
  require_number("repetition_penalty", params_.repetition_penalty, 0.01, 100,
                 "a number from 0.01 to 100");
  require_number("presence_penalty", params_.presence_penalty, -2, 2, "a number from -2 to 2");
  require_number("frequency_penalty", params_.frequency_penalty, -2, 2, "a number from -2 to 2");
  require_integer("n", params_.n, 1, kMaxCompletions, "an integer from 1 to 1024");
}

void Problems::check_stopping() {
  require_integer("min_tokens", params_.min_tokens, 0, INT64_MAX,
                  "an integer from 0 to max_tokens");
  check_stop_strings();
  const auto& ids = params_.stop_token_ids;
  const auto negative = std::find_if(ids.begin(), ids.end(), [](auto id) { return id < 0; });
  if (negative != ids.end())
    refuse("stop_token_ids", std::to_string(*negative), "token ids from 0");
  require_integer("logprobs", params_.logprobs.value_or(0), 0, INT64_MAX, "an integer from 0");
}

void Problems::check_stop_strings() {
  if (params_.stop.size() > kMaxStopStrings) {
    refuse("stop", std::to_string(params_.stop.size()) + " strings", "up to 64");
  }
  for (const std::string& text : params_.stop) {
    const bool may_fit = text.size() <= 4 * kMaxStopLength;  // a character has up to four bytes
    const bool is_valid = may_fit && !text.empty() && valid_utf8_length(text) == text.size();
    if (is_valid && num_characters(text) <= kMaxStopLength) continue;
    refuse("stop", shown_text(text), "1 to 1024 characters of UTF-8");
    return;
  }
}

void Problems::check_together() {
  if (is_right("max_tokens") && is_right("min_tokens") && params_.max_tokens > 0 &&
      params_.min_tokens > params_.max_tokens) {
    found_.push_back("min_tokens is " + std::to_string(params_.min_tokens) +
                     "; allowed: 0 to max_tokens, which is " + std::to_string(params_.max_tokens));
  }
  if (is_right("n") && is_right("temperature") && params_.n > 1 && params_.greedy()) {
    found_.push_back("n is " + std::to_string(params_.n) + " with temperature " +
                     shown_number(params_.temperature) +
                     "; greedy completions are all alike: set n to 1 or the temperature above 0");
  }
}

void Problems::check_vocabulary(std::int64_t vocab_size,
                                const std::vector<std::int64_t>& end_token_ids) {
  const std::string size = std::to_string(vocab_size);
  int outside = 0;
  for (const std::int64_t id : params_.stop_token_ids) {
    if (id < vocab_size || outside++ >= kMaxOutside) continue;
    found_.push_back("stop_token_ids has " + std::to_string(id) + "; allowed: 0 to " +
                     std::to_string(vocab_size - 1) + ", the model's vocabulary");
  }
  const std::int64_t logprobs = params_.logprobs.value_or(0);
  if (logprobs > vocab_size) {
    found_.push_back("logprobs is " + std::to_string(logprobs) + "; the vocabulary has " + size +
                     " tokens");
  }
  const auto num_ending = static_cast<std::int64_t>(params_.ending_token_ids(end_token_ids).size());
  if (params_.min_tokens > 0 && is_right("stop_token_ids") && num_ending >= vocab_size) {
    found_.push_back("min_tokens is " + std::to_string(params_.min_tokens) + ", but all " + size +
                     " tokens end the text; leave some out of stop_token_ids, or set min_tokens "
                     "to 0");
  }
}

}  // namespace

void SamplingParams::check(std::int64_t vocab_size,
                           const std::vector<std::int64_t>& end_token_ids) const {
  Problems problems(*this);
  problems.check_numbers();
  problems.check_stopping();
  problems.check_together();
  problems.check_vocabulary(vocab_size, end_token_ids);
  if (!problems.found().empty()) throw Error(Status::kUsage, "SamplingParams", problems.found());
}

std::vector<std::int64_t> SamplingParams::ending_token_ids(
    const std::vector<std::int64_t>& end_token_ids) const {
  std::vector<std::int64_t> ids = stop_token_ids;
  if (!ignore_eos) ids.insert(ids.end(), end_token_ids.begin(), end_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace skipdec::runtime
