#include "scheduling/running_batch.h"

#include <algorithm>
#include <set>
#include <utility>

#include "errors.h"
#include "scheduling/clock.h"
#include "scheduling/drafters/drafted_decoding.h"

namespace skipdec::runtime {

namespace {

Limits limits_of(const Manifest& manifest, const RunningBatchConfig& config) {
  const std::int64_t most = manifest.model.max_seq_len;
  require_between("max_batch_size", config.max_batch_size, 1, constants::kMaxRows);
  require_between("max_model_len", config.max_model_len, 0, INT64_MAX);
  if (config.max_model_len > most) {
    throw Error(Status::kUsage, "max_model_len",
                "is " + std::to_string(config.max_model_len) + "; the bundle holds " +
                    std::to_string(most) + " positions; lower it");
  }
  require_between("max_prefill_tokens", config.max_prefill_tokens, constants::kMinPrefillTokens,
                  INT32_MAX);
  require_between("kv_memory", config.kv_memory, 1, INT64_MAX);
  return {config.max_batch_size, config.max_model_len > 0 ? config.max_model_len : most,
          config.kv_memory};
}

std::unique_ptr<Decoding> decoding_of(const Manifest& manifest, const RunningBatchConfig& config,
                                      SlotStitcher& stitcher) {
  if (!config.draft) return std::make_unique<OrdinaryDecoding>();
  const bool per_client = config.prefix_cache == PrefixSharing::kClient;
  return DraftedDecoding::make(*config.draft, manifest, per_client, config.known, stitcher);
}

}  // namespace

void RunningBatch::check(const Manifest& manifest, const RunningBatchConfig& config) {
  limits_of(manifest, config);
  Admission::parse(config.admission);
}

RunningBatch::RunningBatch(const Manifest& manifest, const Engines& engines,
                           const Tokenizer* tokenizer, const RunningBatchConfig& config,
                           std::unique_ptr<Decoding> decoding)
    : model_(manifest.model),
      tokenizer_(tokenizer),
      config_(config),
      stitcher_(engines, manifest, limits_of(manifest, config),
                config.prefix_cache != PrefixSharing::kOff,
                config.draft && config.draft->uses_draft_layer()),
      decoding_(decoding ? std::move(decoding) : decoding_of(manifest, config, stitcher_)),
      scheduler_(
          config.max_batch_size, config.max_prefill_tokens, Admission::parse(config.admission),
          [this](const std::vector<Job>& jobs) { return fits(jobs); },
          [this](const Job& job) { return runs_in_chunks(requests_.at(job.number)->prompt); }) {
  rows_.reserve(static_cast<std::size_t>(config.max_batch_size));
  steps_.reserve(static_cast<std::size_t>(config.max_batch_size));
  publish();
}

void RunningBatch::add(std::int64_t number, Request request, double start) {
  ++counters_.submitted;
  try {
    queue(number, std::move(request), start);
  } catch (...) {
    scheduler_.cancel(number);
    requests_.erase(number);
    ++counters_.failed;
    publish();
    throw;
  }
  publish();
}

void RunningBatch::queue(std::int64_t number, Request request, double start) {
  auto running = std::make_unique<Running>();
  running->number = number;
  running->request = std::move(request);
  const Request& queued = running->request;
  running->prompt = prompt_row(queued, next_row_);
  if (config_.prefix_cache == PrefixSharing::kClient) running->prompt.owner = queued.client;
  running->rows_left = queued.params.n;
  next_row_ += queued.params.n;
  running->sequences.reserve(static_cast<std::size_t>(queued.params.n));
  for (std::int64_t index = 0; index < queued.params.n; ++index) {
    running->sequences.emplace_back(queued, index, model_, tokenizer_, start);
  }
  scheduler_.add({number, static_cast<std::int64_t>(queued.prompt.size()), queued.params.n},
                 queued.client);
  requests_.emplace(number, std::move(running));
}

const std::vector<Delta>& RunningBatch::step(double now) {
  deltas_.clear();
  Action action = Wait{};
  try {
    action = scheduler_.next_action(now);
    std::visit([this](const auto& what) { this->run(what); }, action);
    if (!std::holds_alternative<Wait>(action)) failures_in_a_row_ = 0;
  } catch (const std::exception& error) {
    if (++failures_in_a_row_ >= constants::kMaxFailures) throw;
    fail_all(error.what(), action);
  }
  publish();
  return deltas_;
}

void RunningBatch::run(const Prefill& action) {
  const double start = seconds_now();
  std::vector<Running*> requests;
  std::vector<const PromptRow*> rows;
  for (const std::int64_t number : action.numbers) {
    requests.push_back(requests_.at(number).get());
    rows.push_back(&requests.back()->prompt);
  }
  const Logits logits = stitcher_.prefill(rows);
  counters_.prefill_seconds += seconds_now() - start;
  begin(requests, logits);
}

void RunningBatch::run(const Chunk& action) {
  const double start = seconds_now();
  Running* const running = requests_.at(action.number).get();
  if (action.is_first) counters_.prefix_tokens += stitcher_.begin_chunks(running->prompt);
  const Logits logits = stitcher_.chunk(config_.max_prefill_tokens);
  counters_.prefill_seconds += seconds_now() - start;
  if (logits.rows() == 0) return;
  scheduler_.prompt_ran();
  begin({running}, logits);
}

// Samples the first token of each row.
void RunningBatch::begin(const std::vector<Running*>& requests, const Logits& logits) {
  const double start = seconds_now();
  for (std::size_t index = 0; index < requests.size(); ++index) {
    Running& running = *requests[index];
    const auto length = static_cast<std::int64_t>(running.prompt.tokens.size());
    const std::int64_t depth = running.request.schedule->prompt_depth(length - 1, length);
    counters_.prompt_tokens += length;
    for (std::size_t output = 0; output < running.sequences.size(); ++output) {
      const RunningRow& row = rows_.emplace_back(running.row(output));
      begin(row, logits.row(static_cast<std::int64_t>(index)), depth);
    }
  }
  remove_ended();
  counters_.sampling_seconds += seconds_now() - start;
}

// Samples a row's first token.
void RunningBatch::begin(const RunningRow& row, const float* logits, std::int64_t layers) {
  row.sequence->reserve(row.request->max_tokens);
  Delta& delta = new_delta(row);
  try {
    row.sequence->accept(logits, layers, seconds_now(), delta);
    ++counters_.generated_tokens;
  } catch (const std::exception& error) {
    row.sequence->fail(error.what(), delta);
  }
}

void RunningBatch::run(const Decode& /*action*/) {
  const double start = seconds_now(), begun = thread_seconds_now();
  steps_.resize(rows_.size());
  decoding_->feed(rows_, steps_);
  const double drafted = seconds_now(), searching = thread_seconds_now() - begun;
  std::int64_t layer_rows = 0;
  bool has_guesses = false;
  for (const StepRow& step : steps_) {
    layer_rows += static_cast<std::int64_t>(step.plans.front()->size());
    has_guesses |= step.tokens.size() > 1;
  }
  const std::int64_t bound = stitcher_.num_bound();
  const std::vector<const float*>& logits = stitcher_.step(steps_);
  const bool is_first = stitcher_.num_bound() != bound;
  const double sampling = seconds_now();
  if (has_guesses) counters_.draft_seconds += drafted - start;
  counters_.decode_seconds += sampling - start;
  ++counters_.steps;
  counters_.step_rows += static_cast<std::int64_t>(rows_.size());
  counters_.layer_rows += layer_rows;
  counters_.layer_calls += stitcher_.layers_called();
  const float* const* of_row = logits.data();
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    accept(rows_[index], steps_[index], of_row);
    of_row += steps_[index].tokens.size();
  }
  remove_ended();
  counters_.sampling_seconds += seconds_now() - sampling;
  decoding_->ran(steps_, thread_seconds_now() - begun, searching, is_first);
}

// Keeps the tokens that ordinary decoding would write, and rolls back the row's other tokens.
void RunningBatch::accept(const RunningRow& row, const StepRow& fed, const float* const* logits) {
  const std::int64_t before = row.sequence->num_tokens();
  const auto first = static_cast<std::ptrdiff_t>(deltas_.size());
  try {
    decoding_->accept(row, fed, logits, deltas_);
  } catch (const std::exception& error) {
    row.sequence->fail(error.what(), new_delta(row));
  }
  const auto drafted = static_cast<std::int64_t>(fed.tokens.size()) - 1;
  const std::int64_t written = row.sequence->num_tokens() - before;
  const std::int64_t accepted = std::count_if(deltas_.begin() + first, deltas_.end(),
                                              [](const Delta& delta) { return delta.drafted; });
  row.sequence->count_pass(drafted, accepted);
  decoding_->accepted(row, drafted, accepted);
  counters_.draft_tokens += drafted;
  counters_.accepted_draft_tokens += accepted;
  counters_.generated_tokens += written;
  if (written <= drafted && !row.sequence->has_ended()) {
    stitcher_.truncate(row.slot, row.num_positions());
  }
}

Delta& RunningBatch::new_delta(const RunningRow& row) {
  Delta& delta = deltas_.emplace_back();
  delta.number = row.number;
  return delta;
}

// Frees the slots of rows that have ended, and counts requests that have ended.
void RunningBatch::remove_ended() {
  const auto has_ended = [](const RunningRow& row) { return row.sequence->has_ended(); };
  for (const RunningRow& row : rows_) {
    if (!has_ended(row)) continue;
    stitcher_.release(row.slot);
    scheduler_.row_ended(row.number);
    Running& running = *requests_.at(row.number);
    if (--running.rows_left == 0) count_end(running, 1);
  }
  rows_.erase(std::remove_if(rows_.begin(), rows_.end(), has_ended), rows_.end());
}

// Adds ``by`` to the count of requests that ended in the same way as this one.
void RunningBatch::count_end(const Running& running, std::int64_t by) {
  const std::vector<Sequence>& all = running.sequences;
  const bool failed = std::any_of(all.begin(), all.end(), [](const Sequence& each) {
    return each.completion().finish_reason == FinishReason::kError;
  });
  (failed ? counters_.failed : counters_.finished) += by;
}

const std::vector<Delta>& RunningBatch::abort(std::int64_t number, const std::string& reason) {
  if (end(number, reason, &Sequence::abort)) ++counters_.aborted;
  publish();
  return deltas_;
}

const std::vector<Delta>& RunningBatch::fail(std::int64_t number, const std::string& reason) {
  if (end(number, reason, &Sequence::fail)) ++counters_.failed;
  publish();
  return deltas_;
}

// Ends the running rows of a request and frees its slots; returns false if it has none.
bool RunningBatch::end(std::int64_t number, const std::string& reason, EndOne end_one) {
  deltas_.clear();
  const auto found = requests_.find(number);
  if (found == requests_.end() || found->second->has_ended()) return false;
  Running& running = *found->second;
  for (std::size_t output = 0; output < running.sequences.size(); ++output) {
    const RunningRow row = running.row(output);
    if (!row.sequence->has_ended()) (row.sequence->*end_one)(reason, new_delta(row));
    stitcher_.release(row.slot);
  }
  scheduler_.cancel(number);
  rows_.erase(std::remove_if(rows_.begin(), rows_.end(),
                             [&](const RunningRow& row) { return row.number == number; }),
              rows_.end());
  return true;
}

// Ends all rows that run or were about to, because their keys and values may be wrong.
void RunningBatch::fail_all(const std::string& reason, const Action& action) {
  std::set<std::int64_t> numbers;
  for (const RunningRow& row : rows_) numbers.insert(row.number);
  if (const auto* prefill = std::get_if<Prefill>(&action)) {
    numbers.insert(prefill->numbers.begin(), prefill->numbers.end());
  }
  // Prompts that have partly run or just ended; `reset` frees their chunks.
  if (const auto* chunk = std::get_if<Chunk>(&action)) numbers.insert(chunk->number);
  if (const auto number = scheduler_.in_chunks()) numbers.insert(*number);
  for (const std::int64_t number : numbers) {
    Running& running = *requests_.at(number);
    for (std::size_t output = 0; output < running.sequences.size(); ++output) {
      const RunningRow row = running.row(output);
      if (!row.sequence->has_ended()) row.sequence->fail(reason, new_delta(row));
    }
    scheduler_.cancel(number);
    ++counters_.failed;
  }
  rows_.clear();
  stitcher_.reset();
}

void RunningBatch::undo(const Delta& delta) {
  Running& running = *requests_.at(delta.number);
  if (running.has_ended()) count_end(running, -1);
  running.sequences.at(static_cast<std::size_t>(delta.index)).undo(delta.has_token);
}

bool RunningBatch::has_ended(std::int64_t number) const {
  return requests_.at(number)->has_ended();
}

RunningRow RunningBatch::Running::row(std::size_t output) {
  return {prompt.row + static_cast<SlotCache::Row>(output), number, &request, &sequences[output]};
}

bool RunningBatch::Running::has_ended() const {
  return std::all_of(sequences.begin(), sequences.end(),
                     [](const Sequence& each) { return each.has_ended(); });
}

std::vector<Completion> RunningBatch::take(std::int64_t number) {
  const auto found = requests_.find(number);
  std::vector<Completion> completions;
  for (const Sequence& each : found->second->sequences) completions.push_back(each.completion());
  requests_.erase(found);
  return completions;
}

EngineStats RunningBatch::stats() const {
  const std::scoped_lock lock(mutex_);
  return published_;
}

void RunningBatch::publish() {
  counters_.running = static_cast<std::int64_t>(rows_.size());
  counters_.waiting = scheduler_.waiting();
  counters_.reserved_bytes = stitcher_.reserved_bytes();
  counters_.prefix_bytes = stitcher_.prefix_bytes();
  counters_.draft_steps = decoding_->draft_steps();
  counters_.drafting = decoding_->drafting();
  counters_.limit_bytes = stitcher_.limits().kv_bytes;
  const std::scoped_lock lock(mutex_);
  published_ = counters_;
}

}  // namespace skipdec::runtime
