// Decides when a completion ends and how much of its text is final.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/incremental_decoder.h"

namespace skipdec::runtime {

// In the order of constants.json.
enum class FinishReason {
  kStop,    // end of text, a stop token or a stop string
  kLength,  // max_tokens
  kAbort,
  kError,
};

// "stop", "length", "abort" or "error".
const char* name_of(FinishReason reason);

// The stop token or string, or the error; none for end of text.
using StopReason = std::variant<std::monostate, std::int64_t, std::string>;

// The validated fields of SamplingParams that end a completion.
struct StopRules {
  std::vector<std::string> stop;  // UTF-8, not empty
  std::vector<std::int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::int64_t min_tokens = 0;  // tokens that cannot stop; a stop string must end after them
  std::int64_t max_tokens = 0;  // after applying the model's own limit
  std::vector<std::int64_t> end_token_ids;  // the model's own, which ignore_eos switches off
};

// Follows the output tokens of one sequence. Text that may begin a stop string is held back: for
// the stop string "END" and the tokens "an E", "N", "g END it", `push` returns "an ", "", "ENg "
// and the text ends there; with `include_stop_str_in_output` it returns "an E", "N", "g END". A
// stop token's own text is omitted, unless `include_stop_str_in_output`. Of several stop strings,
// the one that is complete first ends the text, and the longest of those. A stop string that is the
// text of a special token, which the text may omit, ends it at that token.
class StopChecker {
 public:
  // Without a `tokenizer`, which must outlive this, text is empty and stop strings throw Error
  // (kUsage).
  StopChecker(StopRules rules, const Tokenizer* tokenizer);

  // Adds the next output token and returns the text that is now final; may be "". The sequence must
  // not have ended.
  std::string push(std::int64_t token_id);

  // Cancels the sequence and returns the text held back; does nothing if it has ended.
  std::string abort(StopReason reason = {});

  // Ends the sequence with an error; text held back is lost.
  void fail(std::string reason);

  // Nothing while the sequence continues.
  std::optional<FinishReason> finish_reason() const { return finish_reason_; }
  const StopReason& stop_reason() const { return stop_reason_; }

  // All text returned so far.
  const std::string& text() const { return text_; }

 private:
  struct Found {
    std::size_t end, start;
    const std::string* stop;
  };

  void end_at(std::int64_t token_id, bool may_stop);
  std::string finish(std::string piece, bool may_stop);
  std::string up_to_stop_string(const std::string& piece, bool may_stop);
  std::optional<Found> find_stop_string(std::string_view text, std::size_t num_old) const;
  std::size_t length_of_beginning(std::string_view text) const;

  StopRules rules_;
  std::optional<IncrementalDecoder> decoder_;
  std::map<std::int64_t, StopReason> stop_reasons_;  // of tokens that stop
  std::int64_t num_tokens_ = 0;
  std::size_t num_early_ = 0;  // characters of the first min_tokens that the decoder holds back
  std::string text_;
  std::string tail_;  // the end of the text that may begin a stop string
  std::size_t longest_stop_ = 0;
  std::optional<FinishReason> finish_reason_;
  StopReason stop_reason_;
};

}  // namespace skipdec::runtime
