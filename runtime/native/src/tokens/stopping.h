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
#include "tokens/sampling_params.h"

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

// Follows the output tokens of one sequence. Text that may begin a stop string is held back: for
// the stop string "END" and the tokens "an E", "N", "g END it", `push` returns "an ", "", "ENg ",
// and the text ends there; with `include_stop_str_in_output` it returns "an E", "N", "g END". A
// stop token's own text is omitted without `include_stop_str_in_output`. Of several stop strings,
// the one that is complete first ends the text, and the longest if several are. A stop string that
// equals the text of a special token, which the output may omit, ends the text at that token.
class StopChecker {
 public:
  // ``params`` must be valid; ``max_tokens`` is their number within the model's limit.
  // ``end_token_ids`` are the model's, which ignore_eos switches off. ``tokenizer`` must outlive
  // this object; without one, text is empty, and requests have no stop strings.
  StopChecker(SamplingParams params, std::int64_t max_tokens,
              std::vector<std::int64_t> end_token_ids, const Tokenizer* tokenizer);

  // Adds the next output token and returns the text that is now final; may be "". The sequence must
  // not have ended.
  std::string push(std::int64_t token_id);

  // Returns to its state after these tokens, the first of those that it has received.
  void restart(const std::vector<std::int64_t>& token_ids);

  // Cancels the sequence and returns the text held back; does nothing if it has ended.
  std::string abort(StopReason reason = {});

  // Ends the sequence with an error; text held back is lost.
  void fail(std::string reason);

  // Returns nothing while the sequence continues.
  std::optional<FinishReason> finish_reason() const { return finish_reason_; }
  const StopReason& stop_reason() const { return stop_reason_; }

  // Returns all text returned so far.
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

  const Tokenizer* tokenizer_;
  SamplingParams params_;
  std::int64_t max_tokens_;
  std::vector<std::int64_t> end_token_ids_;
  std::optional<IncrementalDecoder> decoder_;
  std::map<std::int64_t, StopReason> stop_reasons_;  // by stop token
  std::int64_t num_tokens_ = 0;
  std::size_t num_early_ =
      0;  // characters of the first min_tokens tokens that the decoder holds back
  std::string text_;
  std::string tail_;  // the end of the text that may begin a stop string
  std::size_t longest_stop_ = 0;
  std::optional<FinishReason> finish_reason_;
  StopReason stop_reason_;
};

}  // namespace skipdec::runtime
