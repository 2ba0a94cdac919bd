// One completion while it runs: its tokens, sampler, stop checker, depths and times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "requests/request.h"
#include "tokenizer/tokenizer.h"
#include "tokens/sampler.h"
#include "tokens/stopping.h"

namespace skipdec::runtime {

// The part of a completion that one token added.
struct Delta {
  std::int64_t number = 0;  // request number
  std::int64_t index = 0;   // completion within the request
  bool has_token = false;
  std::int64_t token_id = 0;
  std::string text;  // whole characters
  std::optional<FinishReason> finish_reason;
  StopReason stop_reason;
  std::int64_t layers = 0;
  std::vector<Logprob> logprobs;
  bool drafted = false;  // equals a guess that was fed; may differ between equal texts
};

// A completion so far.
struct Completion {
  std::string text;  // set when the completion ends
  std::vector<std::int64_t> token_ids;
  std::vector<std::int64_t> layers;  // number of layers of each token
  std::optional<FinishReason> finish_reason;
  StopReason stop_reason;
  std::vector<Logprob> logprobs;           // those of all tokens, concatenated
  std::vector<std::size_t> logprobs_ends;  // end of each token's entries in logprobs
  std::vector<double> token_seconds;       // arrival of each token since the caller began to wait
  std::int64_t drafted = 0, accepted = 0;  // drafted tokens, and right ones

  // The number of passes after the prompt, with and without drafts, except one that failed: each
  // wrote the guesses that it accepted and one token more.
  std::int64_t passes() const {
    const auto written = static_cast<std::int64_t>(token_ids.size());
    return std::max<std::int64_t>(0, written - 1 - accepted);
  }
};

class Sequence {
 public:
  // ``tokenizer`` is nullptr if the bundle has none; tokenizer and model must outlive the sequence.
  // ``start`` is when the caller began to wait, in seconds of the clock.
  Sequence(const Request& request, std::int64_t output_index, const ModelSpec& model,
           const Tokenizer* tokenizer, double start);

  // Allocates memory for ``max_tokens`` tokens, so that later calls allocate none. It is separate
  // because waiting requests need none of it.
  void reserve(std::int64_t max_tokens);

  bool has_ended() const { return completion_.finish_reason.has_value(); }
  const Completion& completion() const { return completion_; }
  const Sampler& sampler() const { return sampler_; }
  std::int64_t last_token() const { return completion_.token_ids.back(); }
  std::int64_t num_tokens() const {
    return static_cast<std::int64_t>(completion_.token_ids.size());
  }

  // Samples from ``logits`` [V], computed by ``layers`` layers, and appends the token. Throws Error
  // (kEngine) for logits that are not a distribution.
  void accept(const float* logits, std::int64_t layers, double now, Delta& delta);
  // Counts a pass that checked ``drafted`` guesses, of which ``accepted`` were right.
  void count_pass(std::int64_t drafted, std::int64_t accepted);
  // Undoes the end and, if the last delta ``has_token``, the last token, which was a guess.
  void undo(bool has_token);
  // Ends the completion as cancelled, with ``reason`` as its stop_reason.
  void abort(const std::string& reason, Delta& delta);
  void fail(const std::string& reason, Delta& delta);

 private:
  void write(Delta& delta);

  std::int64_t index_;
  double start_;
  Completion completion_;
  Sampler sampler_;
  StopChecker stop_checker_;
};

}  // namespace skipdec::runtime
