// Decoding: decides which tokens rows feed in a pass, and which results they keep.
#pragma once

#include <cstdint>
#include <vector>

#include "requests/sequence.h"
#include "stitching/slot_stitcher.h"

namespace skipdec::runtime {

// A running completion: its slots for keys and values, its request, and its state.
struct RunningRow {
  SlotCache::Row slot = 0;
  std::int64_t number = 0;  // request number
  const Request* request = nullptr;
  Sequence* sequence = nullptr;

  // The number of positions whose keys and values are known: all but the last token's.
  std::int64_t num_positions() const {
    return static_cast<std::int64_t>(request->prompt.size()) + sequence->num_tokens() - 1;
  }
  // Returns how many guesses the row can use; a pass yields one token more than it has guesses.
  std::int64_t room() const { return request->max_tokens - sequence->num_tokens() - 1; }
};

// Decides which tokens each row feeds in the next pass, and processes their logits.
//
// Every row feeds its last token. Tokens after it are guesses of the next ones. As long as the
// guesses before a token are right, its logits equal those of ordinary decoding, so `accept` keeps
// exactly the tokens of ordinary decoding. The running batch rolls back the keys and values of
// tokens that are not kept.
class Decoding {
 public:
  virtual ~Decoding() = default;
  Decoding() = default;
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  // Writes what ``rows[i]`` feeds to ``steps[i]``; all rows take part in a pass.
  virtual void feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) = 0;
  // Draws the row's next tokens from ``logits``, one [V] for each token that it fed, until the row
  // ends or a token differs from the guess that was fed. Adds a delta for each token, with
  // ``drafted`` if it equals the guess and the row continues after it. Throws Error (kEngine) for
  // logits that are not a distribution; deltas of earlier tokens stay.
  virtual void accept(const RunningRow& row, const StepRow& fed, const float* const* logits,
                      std::vector<Delta>& deltas);
  // Receives that a row, which may have failed, fed ``guesses``, of which ``held`` were right.
  virtual void accepted(const RunningRow& /*row*/, std::int64_t /*guesses*/,
                        std::int64_t /*held*/) {}

  // Receives the thread's processor seconds from `feed` until the tokens of ``steps`` were
  // accepted, and those that `feed` spent on ``searching`` for guesses. ``is_first``: the pass
  // bound engines, so it took longer than later ones.
  virtual void ran(const std::vector<StepRow>& /*steps*/, double /*seconds*/, double /*searching*/,
                   bool /*is_first*/) {}
  // Returns the number of draft steps that ran layers so far.
  virtual std::int64_t draft_steps() const { return 0; }
  // Returns the most tokens that a row drafts at present; 0 while there are no drafts.
  virtual std::int64_t drafting() const { return 0; }

 protected:
  // Writes the row's last token to ``step`` and, after it, ``guesses``, for which the row has room,
  // each with the layers that its position in the text runs.
  static void feed_row(const RunningRow& row, const TokenSpan& guesses, StepRow& step);
};

// Feeds one token per row and pass.
class OrdinaryDecoding : public Decoding {
 public:
  void feed(const std::vector<RunningRow>& rows, std::vector<StepRow>& steps) override;
};

}  // namespace skipdec::runtime
