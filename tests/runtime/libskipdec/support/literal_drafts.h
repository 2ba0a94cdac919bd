// Computes what the draft layer of the arithmetic model does in the most literal way: everything
// anew, for each row alone, in its own caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arithmetic_model.h"
#include "schedule/schedule.h"
#include "stitching/engines.h"

namespace skipdec::runtime::support {

class LiteralDrafts {
 public:
  using Tokens = std::vector<std::int64_t>;
  using Values = std::vector<float>;

  explicit LiteralDrafts(const ArithmeticBundle& bundle)
      : token_ids_(bundle.manifest().trained_draft->token_ids),
        engines_(Engines::load(bundle.manifest(), backend_)) {
    engines_.load_trained_drafts(bundle, backend_);
  }

  // Returns the logits of the tokens that the draft layer scores, after ``text`` and then after
  // each of ``guesses``. ``prompt``: how many of the text's tokens are its prompt. ``entries``: the
  // positions of the tokens that the draft layer was shown, the last of which ends the text.
  std::vector<Values> logits(const Tokens& text, std::size_t prompt, const Schedule& schedule,
                             const Tokens& entries, const Tokens& guesses) {
    const Values states = states_of(text, prompt, schedule);
    Values inputs;
    for (const std::int64_t position : entries) {
      const float* const before = states.data() + (position - 1) * 3 * kHidden;
      const Values joined = join(*engines_.draft_states, {before, before + 3 * kHidden});
      const std::int64_t token = text[static_cast<std::size_t>(position)];
      append(inputs, join(*engines_.draft_entry, with(embed({token}, position), joined)));
    }
    Caches caches(entries.size() + guesses.size());
    run(*engines_.draft_layer, inputs, caches, 0);
    Values output(inputs.end() - kHidden, inputs.end());
    std::vector<Values> found{score(output)};
    auto entry = static_cast<std::int64_t>(entries.size());
    auto position = static_cast<std::int64_t>(text.size());
    for (const std::int64_t guess : guesses) {
      output = join(*engines_.draft_entry, with(embed({guess}, position++), output));
      run(*engines_.draft_layer, output, caches, entry++);
      found.push_back(score(output));
    }
    return found;
  }

 private:
  struct Caches {
    explicit Caches(std::size_t positions) : keys(positions * kHidden), values(keys) {}
    Values keys, values;
  };

  static void append(Values& values, const Values& more) {
    values.insert(values.end(), more.begin(), more.end());
  }
  static Values with(Values values, const Values& more) {
    append(values, more);
    return values;
  }

  // Returns how many of the text's tokens, from the first on, run ``layer``.
  static std::size_t active(const Schedule& schedule, std::int64_t layer, std::size_t prompt,
                            std::size_t length) {
    auto count =
        static_cast<std::size_t>(schedule.prompt_prefix(layer, static_cast<std::int64_t>(prompt)));
    const auto runs = [&](std::size_t position) {
      const LayerPlan& plan = schedule.plan(static_cast<std::int64_t>(position - prompt));
      return std::binary_search(plan.begin(), plan.end(), layer);
    };
    while (count >= prompt && count < length && runs(count)) ++count;
    return count;
  }

  // Returns the states that the draft layer reads, [tokens, 3, E].
  Values states_of(const Tokens& text, std::size_t prompt, const Schedule& schedule) {
    Values hidden = embed(text, 0), states(text.size() * 3 * kHidden);
    for (std::int64_t layer = 0; layer < engines_.num_layers(); ++layer) {
      const std::size_t count = active(schedule, layer, prompt, text.size());
      if (count > 0) {
        const auto end = hidden.begin() + static_cast<std::ptrdiff_t>(count * kHidden);
        Values part(hidden.begin(), end);
        Caches caches(count);
        run(engines_.layer(layer), part, caches, 0);
        std::copy(part.begin(), part.end(), hidden.begin());
      }
      for (std::size_t index = 0; index < 3; ++index) {
        if (engines_.reads[index] != layer + 1) continue;
        for (std::size_t token = 0; token < text.size(); ++token) {
          std::copy_n(&hidden[token * kHidden], kHidden, &states[(3 * token + index) * kHidden]);
        }
      }
    }
    return states;
  }

  Values embed(Tokens tokens, std::int64_t start) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    Tokens positions;
    for (std::int64_t token = 0; token < count; ++token) positions.push_back(start + token);
    Values hidden(tokens.size() * kHidden);
    engines_.embed
        ->bind({{Role::kInputIds, tokens.data(), {count, 1}},
                {Role::kPositionIds, positions.data(), {count, 1}},
                {Role::kHiddenStatesOut, hidden.data(), {count, 1, kHidden}}})
        ->run();
    return hidden;
  }

  static Values join(Session& session, Values states) {
    Values made(kHidden);
    const auto width = static_cast<std::int64_t>(states.size());
    session
        .bind({{Role::kStates, states.data(), {1, 1, width}},
               {Role::kHiddenStatesOut, made.data(), {1, 1, kHidden}}})
        ->run();
    return made;
  }

  // Runs a layer on the tokens ``hidden`` of one row, whose positions begin at ``start``.
  static void run(Session& session, Values& hidden, Caches& caches, std::int64_t start) {
    const auto tokens = static_cast<std::int64_t>(hidden.size()) / kHidden;
    const auto capacity = static_cast<std::int64_t>(caches.keys.size()) / kHidden;
    const std::vector<std::int64_t> shape{1, tokens, kHidden}, cache{1, 1, capacity, kHidden};
    auto last = static_cast<std::int32_t>(start + tokens - 1);
    session
        .bind({{Role::kHiddenStates, hidden.data(), shape},
               {Role::kHiddenStatesOut, hidden.data(), shape},
               {Role::kWriteIndices, &start, {1}},
               {Role::kSeqlensK, &last, {1}},
               {Role::kPastKey, caches.keys.data(), cache},
               {Role::kPastValue, caches.values.data(), cache},
               {Role::kPresentKey, caches.keys.data(), cache},
               {Role::kPresentValue, caches.values.data(), cache}})
        ->run();
  }

  Values score(Values hidden) {
    Values logits(token_ids_.size());
    std::int64_t place = 0;
    engines_.trained_head
        ->bind({{Role::kHiddenStates, hidden.data(), {1, 1, kHidden}},
                {Role::kRowPositions, &place, {1}},
                {Role::kLogits, logits.data(), {1, static_cast<std::int64_t>(logits.size())}}})
        ->run();
    return logits;
  }

  const Tokens& token_ids_;
  ArithmeticBackend backend_;
  Engines engines_;
};

}  // namespace skipdec::runtime::support
