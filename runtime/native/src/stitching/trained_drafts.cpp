#include "stitching/trained_drafts.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace skipdec::runtime {

namespace {

// Limit of bindings kept, one per shape of a call; beyond it, all are made again.
constexpr std::size_t kMostBindings = 1024;

}  // namespace

TrainedDrafts::TrainedDrafts(const Engines& engines, const Manifest& manifest, SlotCache& cache,
                             std::int64_t max_rows)
    : engines_(engines),
      manifest_(manifest),
      cache_(cache),
      layer_(engines.num_layers()),
      hidden_size_(manifest.model.hidden_size),
      all_(manifest, max_rows) {
  const auto bytes = static_cast<std::int64_t>(all_.row_bytes()) * max_rows;
  read_ = Buffer(3 * bytes);
  made_ = Buffer(bytes);
  joined_ = Buffer(2 * bytes);
  logits_.reserve(static_cast<std::size_t>(max_rows));
}

void TrainedDrafts::hold(SlotCache::Row row, std::int64_t position, const TokenSpan& tokens,
                         const std::byte* states) {
  Held& held = held_[row];
  held.start += held.fed;
  held.fed = 0;
  held.position = position;
  held.tokens.assign(tokens.begin(), tokens.end());
  held.states.assign(states, states + 3 * tokens.size() * all_.row_bytes());
}

void TrainedDrafts::clear() {
  held_.clear();
  bound_.clear();
}

const std::vector<const float*>& TrainedDrafts::step(const std::vector<DraftRow>& rows) {
  if (bound_.size() > kMostBindings) bound_.clear();
  lay_out(rows);
  reserve_buffers(num_tokens());
  embed();
  make_states();
  join();
  run_layer();
  score(rows);
  return logits_;
}

// Finds what the row in each of the layer's slots feeds.
void TrainedDrafts::lay_out(const std::vector<DraftRow>& rows) {
  slots_.clear();
  longest_ = 1;
  for (const SlotCache::Row number : cache_.residents(layer_)) {
    Slot slot;
    slot.held = &held_.at(number);
    const auto found = std::find_if(rows.begin(), rows.end(),
                                    [&](const DraftRow& row) { return row.row == number; });
    const Held& held = *slot.held;
    if (found == rows.end()) {
      // A row at its end may have no room for an entry; it overwrites one that is never read again.
      slot.start = std::min(held.start + held.fed, cache_.reserved(number, layer_) - 1);
    } else {
      slot.row = &*found;
      slot.last_token = found->token;
      slot.position = found->position;
      const std::int64_t ahead = found->position - held.position;
      slot.is_first = found->position == cache_.length(number);
      slot.count = slot.is_first ? static_cast<std::size_t>(ahead) : 1;
      slot.start = held.start + (slot.is_first ? 0 : ahead - 1);
    }
    longest_ = std::max(longest_, slot.count);
    slots_.push_back(slot);
  }
}

// Makes the buffers large enough. They double in size, so that there are few allocations.
void TrainedDrafts::reserve_buffers(std::size_t tokens) {
  const auto needed = static_cast<std::int64_t>(tokens);
  if (needed <= all_.size()) return;
  std::int64_t size = all_.size();
  while (size < needed) size *= 2;
  const auto bytes = static_cast<std::int64_t>(all_.row_bytes()) * size;
  StepBuffers all(manifest_, size);
  Buffer read(3 * bytes), made(bytes), joined(2 * bytes);
  bound_.clear();
  all_ = std::move(all);  // after all that may throw, so that no buffer stays smaller
  read_ = std::move(read);
  made_ = std::move(made);
  joined_ = std::move(joined);
}

// Writes the embeddings of all tokens; padding gets that of the row's last token.
void TrainedDrafts::embed() {
  const std::size_t count = num_tokens(), row_bytes = all_.row_bytes();
  std::size_t place = 0;
  for (const Slot& slot : slots_) {
    for (std::size_t token = 0; token < longest_; ++token, ++place) {
      const std::size_t own = std::min(token, slot.count - 1);
      const auto behind = static_cast<std::int64_t>(slot.count - 1 - own);
      all_.input_ids()[place] = slot.token(own);
      all_.position_ids()[place] = slot.position - behind;
    }
  }
  Bound& bound = bound_[{engines_.embed.get(), count, 0, 0}];
  if (!bound.binding) {
    bound.binding = engines_.embed->bind(all_.tensors(static_cast<std::int64_t>(count)));
    ++num_bound_;
  }
  bound.binding->run();
  for (std::size_t each = 0; each < count; ++each) {
    std::memcpy(joined_.data() + 2 * each * row_bytes,
                all_.hidden_state(static_cast<std::int64_t>(each)), row_bytes);
  }
}

// Joins the three states that the model kept for each token into one, for rows' first steps.
void TrainedDrafts::make_states() {
  const std::size_t row_bytes = all_.row_bytes();
  std::size_t done = 0;
  for (const Slot& slot : slots_) {
    if (!slot.is_first) continue;
    std::memcpy(read_.data() + 3 * done * row_bytes, slot.held->states.data(),
                3 * slot.count * row_bytes);
    done += slot.count;
  }
  if (done > 0) joining(*engines_.draft_states, read_, 3, made_.data(), done)->run();
}

// Joins embeddings and states into the layer's input; padding and rows that do not draft have none.
void TrainedDrafts::join() {
  const std::size_t row_bytes = all_.row_bytes();
  const auto state_at = [&](std::size_t place) {
    return joined_.data() + (2 * place + 1) * row_bytes;
  };
  for (std::size_t place = 0; place < num_tokens(); ++place) {
    std::memset(state_at(place), 0, row_bytes);
  }
  const std::byte* made = made_.data();
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const Slot& one = slots_[slot];
    if (one.row == nullptr) continue;
    for (std::size_t token = 0; token < one.count; ++token) {
      const std::byte* const state = one.is_first ? made : one.held->output.data();
      std::memcpy(state_at(slot * longest_ + token), state, row_bytes);
      if (one.is_first) made += row_bytes;
    }
  }
  joining(*engines_.draft_entry, joined_, 2, all_.hidden_state(0), num_tokens())->run();
}

// Runs the layer on the padded rows.
void TrainedDrafts::run_layer() {
  const bool is_split = longest_ > 1 && runs_row_by_row(*engines_.draft_layer);
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    const std::size_t count = is_split ? slots_[slot].count : longest_;
    all_.set_row(slot, slots_[slot].start, static_cast<std::int64_t>(count));
    for (std::size_t token = 0; token < longest_; ++token) {
      all_.position_ids()[slot * longest_ + token] =
          slots_[slot].start + static_cast<std::int64_t>(token);
    }
  }
  if (!is_split) {
    all_.set_total(slots_.size());
    layer_binding(slots_.size(), longest_, 0)->run();
    return;
  }
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    layer_binding(1, slots_[slot].count, slot)->run();
  }
}

// Runs the head on the last token of each row that drafts, and keeps its output.
void TrainedDrafts::score(const std::vector<DraftRow>& rows) {
  logits_.clear();
  const auto num_logits = static_cast<std::int64_t>(token_ids().size());
  for (const DraftRow& row : rows) {
    const auto found = std::find_if(slots_.begin(), slots_.end(),
                                    [&](const Slot& slot) { return slot.row == &row; });
    const auto slot = static_cast<std::size_t>(found - slots_.begin());
    const std::size_t place = slot * longest_ + found->count - 1;
    const std::byte* const output = all_.hidden_state(static_cast<std::int64_t>(place));
    found->held->output.assign(output, output + all_.row_bytes());
    if (found->is_first) found->held->fed = static_cast<std::int64_t>(found->count);
    all_.chosen_positions()[logits_.size()] = static_cast<std::int64_t>(place);
    logits_.push_back(all_.logits(static_cast<std::int64_t>(logits_.size()), num_logits));
  }
  Bound& bound = bound_[{engines_.trained_head.get(), num_tokens(), rows.size(), 0}];
  if (!bound.binding) {
    bound.binding = engines_.trained_head->bind(
        all_.head_tensors(static_cast<std::int64_t>(num_tokens()),
                          static_cast<std::int64_t>(rows.size()), num_logits));
    ++num_bound_;
  }
  bound.binding->run();
}

Binding* TrainedDrafts::joining(Session& session, const Buffer& given, std::int64_t states,
                                std::byte* made, std::size_t tokens) {
  Bound& bound = bound_[{&session, tokens, 0, 0}];
  if (!bound.binding) {
    const auto count = static_cast<std::int64_t>(tokens);
    bound.binding = session.bind({{Role::kStates, given.data(), {count, 1, states * hidden_size_}},
                                  {Role::kHiddenStatesOut, made, {count, 1, hidden_size_}}});
    ++num_bound_;
  }
  return bound.binding.get();
}

Binding* TrainedDrafts::layer_binding(std::size_t rows, std::size_t tokens, std::size_t slot) {
  const std::uint64_t generation = cache_.generation(layer_);
  // The place of a single row of a call depends on the number of padded tokens.
  Bound& bound = bound_[{engines_.draft_layer.get(), rows, tokens, (slot << 8U) + longest_}];
  if (!bound.binding || bound.generation != generation) {
    bound.binding.reset();
    const auto count = static_cast<std::int64_t>(rows), first = static_cast<std::int64_t>(slot);
    std::vector<BoundTensor> tensors = all_.tensors(count, static_cast<std::int64_t>(tokens), first,
                                                    static_cast<std::int64_t>(slot * longest_));
    add_cache(tensors, cache_.layout(), cache_.slots(layer_, first, count));
    bound.binding = engines_.draft_layer->bind(tensors);
    bound.generation = generation;
    ++num_bound_;
  }
  return bound.binding.get();
}

}  // namespace skipdec::runtime
