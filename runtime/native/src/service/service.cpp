#include "service/service.h"

#include <unistd.h>

#include <cmath>
#include <utility>

#include "host/control_groups.h"
#include "host/process_exit.h"
#include "scheduling/clock.h"
#include "scheduling/drafting/draft_resolver.h"
#include "scheduling/drafting/ngrams/known_ngrams.h"
#include "tokenizer/file/unsupported.h"

namespace skipdec::runtime {

std::shared_ptr<Service> Service::open(const std::string& path, const ServiceOptions& options) {
  require_between("max_waiting", options.max_waiting, 1, INT64_MAX);
  const NativeWork loading;
  std::shared_ptr<const Bundle> bundle = Bundle::open(path, options.verify);
  // Invalid options throw before engines load.
  SchedulePointer schedule = bundle->schedules().resolve(options.schedule, 1);
  ServiceOptions resolved = options;
  resolved.batch.draft = resolve_draft(options.draft, bundle->manifest());
  if (resolved.batch.draft) resolved.batch.known = known_ngrams(*bundle);
  RunningBatchConfig batch = options.batch;
  if (batch.kv_memory == 0) batch.kv_memory = 1;  // the default depends on the loaded engines
  RunningBatch::check(bundle->manifest(), batch);
  std::shared_ptr<Backend> backend = Backend::open(bundle, options.sessions);
  auto service = std::make_shared<Service>(std::move(bundle), std::move(backend),
                                           std::move(resolved), std::move(schedule));
  prepare_exit();
  return service;
}

Service::Service(std::shared_ptr<const Bundle> bundle, std::shared_ptr<Backend> backend,
                 ServiceOptions options, SchedulePointer schedule)
    : bundle_(std::move(bundle)),
      options_(std::move(options)),
      process_(getpid()),
      default_schedule_(schedule ? std::move(schedule)
                                 : bundle_->schedules().resolve(options_.schedule, 1)),
      description_(backend->description()),
      backend_(std::move(backend)) {
  load_tokenizer();
  engines_ = Engines::load(manifest(), *backend_);
  if (const auto& draft = options_.batch.draft) {
    if (draft->uses_draft_layer()) engines_.load_trained_drafts(*bundle_, *backend_);
    if (draft->runs_layers()) engines_.load_draft_head(*bundle_, *backend_);
  }
  bundle_->await_weights();
  RunningBatchConfig config = options_.batch;
  if (config.kv_memory == 0) config.kv_memory = default_kv_memory();
  batch_ = std::make_unique<RunningBatch>(manifest(), engines_, tokenizer_.get(), config);
  batch_->require_room(default_schedule_);
  thread_ = std::thread([this] { run(); });
}

Service::~Service() {  // NOLINT(bugprone-exception-escape): to join and detach works here
  if (is_inherited()) {
    thread_.detach();  // the thread exists only in the parent
  } else {
    close();
  }
}

// Loads the tokenizer; a bundle with an unsupported kind of tokenizer runs on token ids.
void Service::load_tokenizer() {
  if (!manifest().tokenizer) {
    no_tokenizer_ = "the bundle has no tokenizer";
    return;
  }
  const std::string& name = *manifest().tokenizer;
  const std::string subject = bundle_->path() + "/" + name;
  try {
    tokenizer_ = Tokenizer::parse(bundle_->read(name, constants::kMaxTokenizerBytes), subject,
                                  options_.raw_prompts ? std::nullopt : manifest().prompt_template);
  } catch (const UnsupportedTokenizer& error) {
    no_tokenizer_ = error.what();
  }
}

std::vector<std::shared_ptr<Ticket>> Service::submit_many(const std::vector<Prompt>& prompts,
                                                          const SamplingParams& params,
                                                          const std::string& schedule,
                                                          double deadline, const OnDelta& on_delta,
                                                          const std::string& client, bool drafts) {
  require_usable();
  const ModelSpec& model = manifest().model;
  params.check(model.vocab_size, model.end_token_ids);
  if (!params.stop.empty() && !tokenizer_)
    throw Error(Status::kUsage, "prompt", "stop strings need a tokenizer; use stop_token_ids");
  std::list<Arrival> made;
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (const Prompt& prompt : prompts) {
    made.push_back(arrival(prompt, params, schedule, deadline));
    made.back().request.client = client;
    made.back().request.drafts = drafts;
    tickets.push_back(made.back().ticket);
    tickets.back()->on_delta = on_delta;
  }
  {
    const std::scoped_lock lock(mutex_);
    if (refusal_) throw Error(*refusal_);
    const auto waiting = static_cast<std::int64_t>(arrivals_.size()) + batch_->stats().waiting;
    const auto count = static_cast<std::int64_t>(made.size());
    if (waiting + count > options_.max_waiting) {
      throw Error(Status::kBusy, "engine",
                  std::to_string(waiting) + " requests wait; allowed: " +
                      std::to_string(options_.max_waiting) + "; try again later");
    }
    num_open_ += count;
    for (const Arrival& each : made) each.ticket->number = next_number_++;
    arrivals_.splice(arrivals_.end(), made);
  }
  changed_.notify_all();
  return tickets;
}

void Service::require_may_wait(std::size_t count) const {
  if (count <= static_cast<std::uint64_t>(options_.max_waiting)) return;
  throw Error(Status::kUsage, "prompts",
              "are " + std::to_string(count) + "; allowed: max_waiting, which is " +
                  std::to_string(options_.max_waiting) + "; submit fewer, or raise it");
}

// Checks a request.
Service::Arrival Service::arrival(const Prompt& prompt, const SamplingParams& params,
                                  const std::string& schedule, double deadline) const {
  if (std::isnan(deadline)) {
    throw Error(Status::kUsage, "deadline",
                "is nan; allowed: seconds from now, negative if it has passed, or 0 for none");
  }
  const ModelSpec& model = manifest().model;
  Arrival made;
  made.start = seconds_now();
  Request& request = made.request;
  request.prompt = token_ids(prompt, true);
  request.params = params;
  request.max_tokens = resolve_max_tokens(request.prompt, params, model, max_model_len());
  request.schedule = resolve(schedule, request.max_tokens);
  batch_->require_possible(request);
  made.ticket = std::make_shared<Ticket>(params.n, engine_thread_);
  made.ticket->prompt = request.prompt;
  made.ticket->schedule = request.schedule;
  if (deadline != 0) made.ticket->deadline = made.start + deadline;
  return made;
}

void Service::cancel(std::int64_t number) {
  require_usable();
  {
    const std::scoped_lock lock(mutex_);
    cancellations_.push_back(number);
  }
  changed_.notify_all();
}

ScoreResult Service::score(const Prompt& prompt, const Prompt& continuation,
                           const std::string& schedule, TokenSpan& scored) {
  require_usable();
  require_outside_callback("score");
  Score score;
  score.request.prompt = token_ids(prompt, true);
  score.request.continuation = token_ids(continuation, false);
  const std::int64_t vocab_size = manifest().model.vocab_size;
  require_token_ids("prompt", score.request.prompt, vocab_size);
  require_token_ids("continuation", score.request.continuation, vocab_size);
  scored = score.request.continuation;
  score.request.schedule = resolve(schedule, static_cast<std::int64_t>(scored.size()));
  batch_->require_possible(score.request);
  std::future<ScoreResult> result = score.result.get_future();
  {
    const std::scoped_lock lock(mutex_);
    if (refusal_) throw Error(*refusal_);
    new_scores_.push_back(std::move(score));
    ++num_open_;
  }
  changed_.notify_all();
  return result.get();
}

bool Service::drain(double timeout) {
  require_timeout(timeout);
  require_usable();
  require_outside_callback("drain");
  std::unique_lock lock(mutex_);
  if (!refusal_) refusal_.emplace(Status::kClosed, "engine", "is draining; no new requests");
  return wait_for(changed_, lock, timeout, [this] { return num_open_ == 0; });
}

void Service::close() {
  require_usable();
  require_outside_callback("close");
  const std::scoped_lock closing(closing_);
  {
    const std::scoped_lock lock(mutex_);
    is_stopping_ = true;
    refusal_.emplace(Status::kClosed, "engine", "was closed; open the bundle again");
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Service::is_inherited() const { return process_ != getpid(); }

std::string Service::draft() const {
  return options_.batch.draft ? options_.batch.draft->text() : "";
}

std::string Service::warning() const {
  const std::optional<DraftConfig>& draft = options_.batch.draft;
  const std::string unused = draft ? unused_draft_warning(*draft, *default_schedule_) : "";
  const std::string untuned = untuned_warning();
  return untuned.empty() || unused.empty() ? untuned + unused : untuned + "; " + unused;
}

std::string Service::untuned_warning() const {
  const Schedule& chosen = *default_schedule_;
  if (bundle_->schedules().own()->is_reduced() || !chosen.is_reduced()) return "";
  const bool exits_early = manifest().exits_early;
  if (exits_early ? chosen.exits_early() : manifest().is_tuned) return "";
  const std::string& given = options_.schedule;  // a preset's horizon is each request's
  const bool is_name = !given.empty() && given.front() != '{';
  const std::string text = "schedule " + (is_name ? given : chosen.text()) + " skips layers";
  if (exits_early)
    return text +
           " below others that run, but the model was trained to exit early: its texts will be "
           "poor; add placement=bottom, or run the schedule full";
  return text +
         ", but nothing says that the model was tuned for that: its texts will be poor; tune it "
         "(skipdec tune) and export it again, or run the schedule full";
}

std::int64_t Service::max_model_len() const {
  const std::int64_t given = options_.batch.max_model_len;
  return given > 0 ? given : manifest().model.max_seq_len;
}

EngineStats Service::stats() const {
  require_usable();
  const std::scoped_lock lock(mutex_);
  EngineStats stats = batch_->stats();
  stats.waiting += static_cast<std::int64_t>(arrivals_.size());
  return stats;
}

const Tokenizer& Service::tokenizer() const {
  if (!tokenizer_) throw Error(Status::kUsage, "text", no_tokenizer_ + "; give token ids");
  return *tokenizer_;
}

void Service::require_usable() const {
  if (is_inherited()) {
    throw Error(Status::kUsage, "engine",
                "was opened by process " + std::to_string(process_) + ", of which this process, " +
                    std::to_string(getpid()) +
                    ", is a fork: threads don't survive a fork; open the bundle here");
  }
}

void Service::require_outside_callback(const char* what) const {
  if (engine_thread_->is_current()) {
    throw Error(Status::kUsage, "engine",
                std::string("can't ") + what +
                    " within a callback, which runs on its thread; do it on another thread");
  }
}

TokenSpan Service::token_ids(const Prompt& prompt, bool is_prompt) const {
  if (const auto* ids = std::get_if<TokenSpan>(&prompt)) return *ids;
  const auto* chat = std::get_if<RenderedChat>(&prompt);
  const std::string& text = chat != nullptr ? chat->text : std::get<std::string>(prompt);
  const std::int64_t most = manifest().model.max_seq_len;
  const std::int64_t least = tokenizer().least_tokens(text);
  const char* subject = is_prompt ? "prompt" : "continuation";
  if (least > most) {  // encoding megabytes would take long
    throw Error(Status::kUsage, subject,
                "has at least " + std::to_string(least) + " tokens; the bundle holds " +
                    std::to_string(most) + " positions; shorten it");
  }
  if (chat != nullptr) return tokenizer().encode(text, false);  // the template writes all tokens
  return is_prompt ? tokenizer().encode_prompt(text) : tokenizer().encode(text, false, subject);
}

SchedulePointer Service::resolve(const std::string& schedule, std::int64_t max_tokens) const {
  if (schedule.empty() && names_file(options_.schedule)) return default_schedule_;
  return bundle_->schedules().resolve(schedule.empty() ? options_.schedule : schedule, max_tokens);
}

}  // namespace skipdec::runtime
