// The C++17 interface of libskipdec: owning handles, exceptions, ranges of deltas.
//
//   skipdec::Engine engine("opt-1.3b-int8", skipdec::Options().schedule("4x"));
//   skipdec::Request request = engine.submit("The capital of France is",
//                                            skipdec::Params().max_tokens(32).temperature(0));
//   for (const skipdec::Delta& delta : request) std::cout << delta.text << std::flush;
//
// skipdec.h documents each field and call. Here its structs become values that own their contents,
// and a status other than SKIPDEC_OK becomes an Error. Texts are UTF-8. Engines and requests can be
// moved but not copied; a moved-from object refuses every call. All threads may use an engine, but
// only one thread at a time may use a request (any thread may cancel it).
#ifndef SKIPDEC_HPP
#define SKIPDEC_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "skipdec.h"

namespace skipdec {

using Seconds = std::chrono::duration<double>;
inline constexpr Seconds kForever{-1};

// A failed call; the message is that of skipdec_last_error().
class Error : public std::runtime_error {
 public:
  Error(skipdec_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}

  skipdec_status status() const noexcept { return status_; }

 private:
  skipdec_status status_;
};

namespace detail {

inline void check(skipdec_status status) {
  if (status != SKIPDEC_OK) throw Error(status, skipdec_last_error());
}

// Returns ``text`` as a C string; throws Error if it contains a zero byte, which would truncate it.
inline const char* null_terminated(const std::string& text, const char* name) {
  if (text.find('\0') != std::string::npos) {
    throw Error(SKIPDEC_USAGE, std::string(name) + " | has a zero byte; allowed: text without one");
  }
  return text.c_str();
}

inline std::optional<std::string> optional_text(const char* text) {
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

inline std::optional<std::int64_t> optional_token(std::int64_t token_id) {
  return token_id < 0 ? std::nullopt : std::optional<std::int64_t>(token_id);
}

template <class Value>
std::vector<Value> copied(const Value* values, std::size_t count) {
  return count == 0 ? std::vector<Value>() : std::vector<Value>(values, values + count);
}

}  // namespace detail

using Logprob = skipdec_logprob;
using Stats = skipdec_stats;

// The prompt of a call: a view of a text, or of token ids, which must live until the call returns.
class Prompt {
 public:
  Prompt(const std::string& text) : view_{detail::null_terminated(text, "prompt"), nullptr, 0} {}
  Prompt(const char* text) : view_{text, nullptr, 0} {}
  Prompt(const std::vector<std::int64_t>& token_ids)
      : view_{nullptr, token_ids.data(), token_ids.size()} {}
  Prompt(std::initializer_list<std::int64_t> token_ids)
      : view_{nullptr, token_ids.begin(), token_ids.size()} {}

  const skipdec_prompt& view() const { return view_; }

 private:
  skipdec_prompt view_;
};

// New output of one completion: up to one token, and complete characters of text.
struct Delta {
  explicit Delta(const skipdec_delta& delta)
      : index(delta.index),
        token_ids(detail::copied(delta.token_ids, delta.num_tokens)),
        text(delta.text, delta.num_bytes),
        finish_reason(detail::optional_text(delta.finish_reason)),
        stop_reason(detail::optional_text(delta.stop_reason)),
        stop_token_id(detail::optional_token(delta.stop_token_id)),
        layers(delta.layers),
        logprobs(detail::copied(delta.logprobs, delta.num_logprobs)),
        drafted(delta.drafted != 0) {}

  std::int64_t index;  // index of the completion in its request, 0 … n-1
  std::vector<std::int64_t> token_ids;
  std::string text;
  std::optional<std::string> finish_reason;  // empty while the completion runs
  std::optional<std::string> stop_reason;
  std::optional<std::int64_t> stop_token_id;
  std::int64_t layers;            // number of decoder layers that the token ran
  std::vector<Logprob> logprobs;  // chosen token first; empty unless requested
  bool drafted;  // the token is a right guess, after which the completion continued
};

// A finished completion.
struct Completion {
  explicit Completion(const skipdec_completion& completion)
      : text(completion.text, completion.num_bytes),
        token_ids(detail::copied(completion.token_ids, completion.num_tokens)),
        layers(detail::copied(completion.layers, completion.num_tokens)),
        finish_reason(detail::optional_text(completion.finish_reason)),
        stop_reason(detail::optional_text(completion.stop_reason)),
        stop_token_id(detail::optional_token(completion.stop_token_id)),
        time_to_first_token(completion.time_to_first_token),
        seconds(completion.seconds),
        token_seconds(detail::copied(completion.token_seconds, completion.num_tokens)),
        passes(completion.passes),
        drafted(completion.drafted),
        accepted(completion.accepted) {
    if (completion.logprobs == nullptr) return;
    const Logprob* begin = completion.logprobs;
    for (std::size_t token = 0; token < completion.num_tokens; ++token) {
      const Logprob* end = completion.logprobs + completion.logprobs_ends[token];
      logprobs.emplace_back(begin, end);
      begin = end;
    }
  }

  std::string text;
  std::vector<std::int64_t> token_ids, layers;  // number of layers that each token ran
  std::optional<std::string> finish_reason, stop_reason;
  std::optional<std::int64_t> stop_token_id;
  std::vector<std::vector<Logprob>> logprobs;  // one entry per token; empty unless requested
  double time_to_first_token, seconds;
  std::vector<double> token_seconds;  // seconds from submission to each token
  std::int64_t passes;                // decode steps in which it took part, except a failed one
  std::int64_t drafted, accepted;     // guesses that those steps checked, and those that were right
};

// Log-probabilities of a given text, and the number of layers that each token ran.
struct Score {
  std::vector<std::int64_t> token_ids;
  std::vector<double> logprobs;
  std::vector<std::int64_t> layers;
};

// Describes an open bundle, see skipdec_info.
struct Info {
  std::string model, description, schedule, draft;
  std::int64_t num_layers, hidden_size, vocab_size, max_model_len;
  std::optional<std::int64_t> eos_token_id;
  bool has_tokenizer;
  std::string no_tokenizer, warning;
};

// Options for opening a bundle; each setter has the name of its field in skipdec_options.
class Options {
 public:
  Options() { skipdec_options_init(&options_, sizeof options_); }

  Options& schedule(std::string text) { return set(schedule_, std::move(text)); }
  Options& threads(std::int32_t count) { return set(options_.threads, count); }
  Options& max_batch_size(std::int32_t rows) { return set(options_.max_batch_size, rows); }
  Options& kv_memory(std::uint64_t bytes) { return set(options_.kv_memory, bytes); }
  Options& raw_prompts(bool on = true) { return set(options_.raw_prompts, on ? 1 : 0); }
  Options& verify(skipdec_verify what) { return set(options_.verify, what); }
  Options& weights(skipdec_weights where) { return set(options_.weights, where); }
  Options& max_waiting(std::int32_t requests) { return set(options_.max_waiting, requests); }
  Options& max_prefill_tokens(std::int32_t count) {
    return set(options_.max_prefill_tokens, count);
  }
  Options& max_model_len(std::int64_t positions) { return set(options_.max_model_len, positions); }
  Options& admission(std::string text) { return set(admission_, std::move(text)); }
  Options& prefix_cache(skipdec_prefix_cache who) { return set(options_.prefix_cache, who); }
  Options& onnxruntime(std::string path) { return set(onnxruntime_, std::move(path)); }
  Options& draft(std::string text) { return set(draft_, std::move(text)); }

  // Returns the C struct, valid while this object lives unchanged.
  skipdec_options view() const {
    skipdec_options options = options_;
    if (schedule_) options.schedule = detail::null_terminated(*schedule_, "schedule");
    if (admission_) options.admission = detail::null_terminated(*admission_, "admission");
    if (onnxruntime_) options.onnxruntime = detail::null_terminated(*onnxruntime_, "onnxruntime");
    if (draft_) options.draft = detail::null_terminated(*draft_, "draft");
    return options;
  }

 private:
  template <class Field, class Value>
  Options& set(Field& field, Value&& value) {
    field = std::forward<Value>(value);
    return *this;
  }

  skipdec_options options_;
  std::optional<std::string> schedule_, admission_, onnxruntime_, draft_;
};

// Receives deltas on the engine's thread, which waits for it; returns true to continue the request.
// It may submit, cancel and destroy requests, including its own, and poll them (with a timeout of
// 0). Waiting for a request throws Error (SKIPDEC_USAGE). If it throws, its request is cancelled
// (after `submit_many`: all of them), it is not called again, and `Request::wait` rethrows the
// exception. The engine and its other requests continue.
using OnDelta = std::function<bool(const Delta&)>;

// Parameters of sampling and stopping; each setter has the name of its field in skipdec_params.
class Params {
 public:
  Params() { skipdec_params_init(&params_, sizeof params_); }

  Params& max_tokens(std::int64_t count) { return set(params_.max_tokens, count); }
  Params& temperature(double value) { return set(params_.temperature, value); }
  Params& top_k(std::int64_t count) { return set(params_.top_k, count); }
  Params& top_p(double share) { return set(params_.top_p, share); }
  Params& min_p(double share) { return set(params_.min_p, share); }
  Params& repetition_penalty(double value) { return set(params_.repetition_penalty, value); }
  Params& presence_penalty(double value) { return set(params_.presence_penalty, value); }
  Params& frequency_penalty(double value) { return set(params_.frequency_penalty, value); }
  Params& seed(std::optional<std::uint64_t> value) {
    params_.has_seed = value ? 1 : 0;
    return set(params_.seed, value.value_or(0));
  }
  Params& n(std::int64_t completions) { return set(params_.n, completions); }
  Params& min_tokens(std::int64_t count) { return set(params_.min_tokens, count); }
  Params& stop(std::vector<std::string> texts) { return set(stop_, std::move(texts)); }
  Params& stop_token_ids(std::vector<std::int64_t> token_ids) {
    return set(stop_token_ids_, std::move(token_ids));
  }
  Params& ignore_eos(bool on = true) { return set(params_.ignore_eos, on ? 1 : 0); }
  Params& include_stop_str_in_output(bool on = true) {
    return set(params_.include_stop_str_in_output, on ? 1 : 0);
  }
  Params& skip_special_tokens(bool on) { return set(params_.skip_special_tokens, on ? 1 : 0); }
  Params& logprobs(std::optional<std::int64_t> count) {
    return set(params_.logprobs, count.value_or(-1));
  }
  Params& schedule(std::string text) { return set(schedule_, std::move(text)); }
  Params& client(std::string name) { return set(client_, std::move(name)); }
  Params& draft(std::string text) { return set(draft_, std::move(text)); }
  // Texts are chats that the bundle's template has rendered, see skipdec_params.
  Params& rendered_chat(bool on = true) { return set(params_.rendered_chat, on ? 1 : 0); }
  // A negative time has already passed, so the request ends at once. Zero means no deadline.
  Params& deadline(Seconds from_now) { return set(params_.deadline, from_now.count()); }
  Params& on_delta(OnDelta function) { return set(on_delta_, std::move(function)); }

  std::int64_t num_completions() const { return params_.n; }
  const OnDelta& callback() const { return on_delta_; }

  // Returns the C struct without the callback, and fills ``stop``, to which it points. Valid while
  // both objects live unchanged.
  skipdec_params view(std::vector<const char*>& stop) const {
    skipdec_params params = params_;
    stop.clear();
    for (const std::string& text : stop_) stop.push_back(detail::null_terminated(text, "stop"));
    params.stop = stop.data();
    params.num_stop = stop.size();
    params.stop_token_ids = stop_token_ids_.data();
    params.num_stop_token_ids = stop_token_ids_.size();
    if (schedule_) params.schedule = detail::null_terminated(*schedule_, "schedule");
    if (client_) params.client = detail::null_terminated(*client_, "client");
    if (draft_) params.draft = detail::null_terminated(*draft_, "draft");
    return params;
  }

 private:
  template <class Field, class Value>
  Params& set(Field& field, Value&& value) {
    field = std::forward<Value>(value);
    return *this;
  }

  skipdec_params params_;
  std::vector<std::string> stop_;
  std::vector<std::int64_t> stop_token_ids_;
  std::optional<std::string> schedule_, client_, draft_;
  OnDelta on_delta_;
};

namespace detail {

// The callback keeps itself alive during a call, because it may destroy its own request.
struct Callback : std::enable_shared_from_this<Callback> {
  explicit Callback(OnDelta on_delta) : function(std::move(on_delta)) {}

  static int call(void* user_data, const skipdec_delta* delta) noexcept {
    const auto self = static_cast<Callback*>(user_data)->weak_from_this().lock();
    if (self->failure()) return 1;
    try {
      return self->function(Delta(*delta)) ? 0 : 1;
    } catch (...) {
      const std::scoped_lock lock(self->mutex_);
      self->failure_ = std::current_exception();
      return 1;
    }
  }

  // Returns the exception that the function threw, or null.
  std::exception_ptr failure() const {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }

  OnDelta function;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace detail

// A submitted prompt and its completions. Destroying the object, or assigning to it, cancels the
// request.
class Request {
 public:
  Request(Request&&) noexcept = default;
  // Releases the old request before it frees its callback, which may be running.
  Request& operator=(Request&& other) noexcept {
    Request taken(std::move(other));
    std::swap(callback_, taken.callback_);
    std::swap(handle_, taken.handle_);
    std::swap(num_completions_, taken.num_completions_);
    std::swap(has_ended_, taken.has_ended_);
    return *this;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() = default;

  // Returns the next delta of any completion, or nothing after the last one or if none came within
  // ``timeout``; `has_ended` distinguishes the two. Throws Error, e.g. SKIPDEC_CLOSED if the engine
  // was closed.
  std::optional<Delta> next(Seconds timeout = kForever) {
    const skipdec_delta* delta = nullptr;
    const skipdec_status status = skipdec_request_next(handle_.get(), timeout.count(), &delta);
    has_ended_ = status == SKIPDEC_END;
    if (has_ended_ || status == SKIPDEC_TIMEOUT) return std::nullopt;
    detail::check(status);
    return Delta(*delta);
  }

  // True once `next` has returned nothing because the request has ended.
  bool has_ended() const { return has_ended_; }

  // Waits for all completions to end; returns false if ``timeout`` expires. Throws Error, or
  // rethrows the exception of the callback.
  bool wait(Seconds timeout = kForever) {
    const skipdec_status status = skipdec_request_wait(handle_.get(), timeout.count());
    if (status == SKIPDEC_TIMEOUT) return false;
    if (const auto failure = callback_ ? callback_->failure() : nullptr) {
      std::rethrow_exception(failure);
    }
    detail::check(status);
    return true;
  }

  void cancel() { detail::check(skipdec_request_cancel(handle_.get())); }

  // Returns a completion of a request that has ended; throws Error (SKIPDEC_USAGE) while it is
  // running.
  Completion completion(std::int64_t index = 0) const {
    const skipdec_completion* completion = nullptr;
    detail::check(skipdec_request_completion(handle_.get(), index, &completion));
    return Completion(*completion);
  }
  std::vector<Completion> completions() const {
    std::vector<Completion> all;
    all.reserve(static_cast<std::size_t>(num_completions_));
    for (std::int64_t index = 0; index < num_completions_; ++index) {
      all.push_back(completion(index));
    }
    return all;
  }

  std::vector<std::int64_t> prompt_token_ids() const {
    const std::int64_t* token_ids = nullptr;
    std::size_t count = 0;
    detail::check(skipdec_request_prompt(handle_.get(), &token_ids, &count));
    return detail::copied(token_ids, count);
  }

  // Returns the full text of the request's schedule.
  std::string schedule() const {
    const char* schedule = nullptr;
    detail::check(skipdec_request_schedule(handle_.get(), &schedule));
    return schedule;
  }

  // Returns the layers that a token with ``count`` layers ran; ``count`` is a value from a
  // completion's ``layers``.
  std::vector<std::int64_t> layers(std::int64_t count) const {
    const std::int64_t* layers = nullptr;
    detail::check(skipdec_request_layers(handle_.get(), count, &layers));
    return detail::copied(layers, static_cast<std::size_t>(count));
  }

  // Iterates once over the remaining deltas, waiting for each.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Delta;
    using difference_type = std::ptrdiff_t;
    using pointer = const Delta*;
    using reference = const Delta&;

    Iterator() = default;
    explicit Iterator(Request& request) : request_(&request), delta_(request.next()) {}

    // Throws std::bad_optional_access at the end.
    // NOLINTBEGIN(bugprone-unchecked-optional-access)
    reference operator*() const { return delta_.value(); }
    pointer operator->() const { return &delta_.value(); }
    // NOLINTEND(bugprone-unchecked-optional-access)
    Iterator& operator++() {
      delta_ = request_->next();
      return *this;
    }
    void operator++(int) { ++*this; }

    // Iterators are equal only if both are at the end.
    friend bool operator==(const Iterator& a, const Iterator& b) { return !a.delta_ && !b.delta_; }
    friend bool operator!=(const Iterator& a, const Iterator& b) { return !(a == b); }

   private:
    Request* request_ = nullptr;
    std::optional<Delta> delta_;
  };
  Iterator begin() { return Iterator(*this); }
  static Iterator end() { return {}; }

  skipdec_request* get() const { return handle_.get(); }

 private:
  friend class Engine;

  struct Release {
    void operator()(skipdec_request* request) const { skipdec_request_release(request); }
  };

  Request(skipdec_request* handle, std::shared_ptr<detail::Callback> callback,
          std::int64_t num_completions)
      : callback_(std::move(callback)), handle_(handle), num_completions_(num_completions) {}

  std::shared_ptr<detail::Callback> callback_;  // outlives the handle
  std::unique_ptr<skipdec_request, Release> handle_;
  std::int64_t num_completions_;
  bool has_ended_ = false;
};

// An open bundle and the thread that runs its requests.
class Engine {
 public:
  // Opens the bundle at ``path``. Throws Error for a problem with the bundle, the options or this
  // machine.
  explicit Engine(const std::string& path, const Options& options = {}) {
    if (skipdec_abi_version() < SKIPDEC_ABI_VERSION) {
      throw Error(SKIPDEC_ENVIRONMENT,
                  "libskipdec | is older than the header that this program "
                  "was compiled with; install the newer library");
    }
    const skipdec_options view = options.view();
    skipdec_engine* engine = nullptr;
    detail::check(skipdec_engine_open(detail::null_terminated(path, "bundle"), &view, &engine));
    handle_.reset(engine);
  }

  // Checks a prompt and queues it.
  Request submit(const Prompt& prompt, const Params& params = {}) {
    return std::move(start({prompt.view()}, params).front());
  }

  // Queues a container of prompts, e.g. {"a", {5, 6}} or a vector of texts, which are admitted
  // together as far as they fit. If it throws, none is queued. All requests share the callback.
  template <class Prompts = std::initializer_list<Prompt>>
  std::vector<Request> submit_many(const Prompts& prompts, const Params& params = {}) {
    std::vector<skipdec_prompt> views;
    views.reserve(std::size(prompts));
    for (const auto& prompt : prompts) views.push_back(Prompt(prompt).view());
    return start(views, params);
  }

  // Submits a prompt and waits for all of its completions.
  std::vector<Completion> generate(const Prompt& prompt, const Params& params = {}) {
    Request request = submit(prompt, params);
    request.wait();
    return request.completions();
  }

  // Computes log-probabilities of a continuation, each token at the depth at which it would be
  // generated.
  Score score(const std::string& prompt, const std::string& continuation,
              const std::optional<std::string>& schedule = std::nullopt) {
    skipdec_score* score = nullptr;
    detail::check(skipdec_score_text(handle_.get(), detail::null_terminated(prompt, "prompt"),
                                     detail::null_terminated(continuation, "continuation"),
                                     optional_schedule(schedule), &score));
    return taken(score);
  }
  Score score(const std::vector<std::int64_t>& prompt,
              const std::vector<std::int64_t>& continuation,
              const std::optional<std::string>& schedule = std::nullopt) {
    skipdec_score* score = nullptr;
    detail::check(skipdec_score_tokens(handle_.get(), prompt.data(), prompt.size(),
                                       continuation.data(), continuation.size(),
                                       optional_schedule(schedule), &score));
    return taken(score);
  }
  Score score(std::initializer_list<std::int64_t> prompt,
              std::initializer_list<std::int64_t> continuation,
              const std::optional<std::string>& schedule = std::nullopt) {
    return score(std::vector<std::int64_t>(prompt), std::vector<std::int64_t>(continuation),
                 schedule);
  }

  // Encodes a text; with ``is_prompt``, adds the prompt template and special tokens.
  std::vector<std::int64_t> encode(const std::string& text, bool is_prompt = true) const {
    std::vector<std::int64_t> token_ids(text.size() + 16);
    const char* null_terminated = detail::null_terminated(text, "text");
    for (;;) {
      std::size_t count = 0;
      detail::check(skipdec_encode(handle_.get(), null_terminated, is_prompt ? 1 : 0,
                                   token_ids.data(), token_ids.size(), &count));
      const bool has_all = count <= token_ids.size();
      token_ids.resize(count);
      if (has_all) return token_ids;
    }
  }
  std::string decode(const std::vector<std::int64_t>& token_ids,
                     bool skip_special_tokens = true) const {
    std::string text(8 * token_ids.size() + 1, '\0');
    for (;;) {
      std::size_t num_bytes = 0;
      detail::check(skipdec_decode(handle_.get(), token_ids.data(), token_ids.size(),
                                   skip_special_tokens ? 1 : 0, text.data(), text.size(),
                                   &num_bytes));
      const bool has_all = num_bytes < text.size();
      text.resize(has_all ? num_bytes : num_bytes + 1);
      if (has_all) return text;
    }
  }

  Info info() const {
    const skipdec_info* info = nullptr;
    detail::check(skipdec_engine_info(handle_.get(), &info));
    return {info->model,
            info->description,
            info->schedule,
            info->draft,
            info->num_layers,
            info->hidden_size,
            info->vocab_size,
            info->max_model_len,
            detail::optional_token(info->eos_token_id),
            info->has_tokenizer != 0,
            info->no_tokenizer,
            info->warning};
  }
  Stats stats() const {
    Stats stats{};
    stats.size = sizeof stats;
    detail::check(skipdec_engine_stats(handle_.get(), &stats));
    return stats;
  }

  // Refuses new requests and waits for the existing ones; returns false if ``timeout`` expires.
  bool drain(Seconds timeout = kForever) {
    const skipdec_status status = skipdec_engine_drain(handle_.get(), timeout.count());
    if (status == SKIPDEC_TIMEOUT) return false;
    detail::check(status);
    return true;
  }

  // Closes the engine like the destructor, but throws Error if that is refused in a callback.
  void close() {
    skipdec_engine* const engine = handle_.release();
    const skipdec_status status = skipdec_engine_close(engine);
    if (status != SKIPDEC_OK) handle_.reset(engine);
    detail::check(status);
  }

  skipdec_engine* get() const { return handle_.get(); }

 private:
  struct Close {
    void operator()(skipdec_engine* engine) const { skipdec_engine_close(engine); }
  };
  struct ReleaseScore {
    void operator()(skipdec_score* score) const { skipdec_score_release(score); }
  };

  std::vector<Request> start(const std::vector<skipdec_prompt>& prompts, const Params& params) {
    const Submission submission(params);
    std::vector<skipdec_request*> handles(prompts.size());
    std::vector<Request> requests;
    requests.reserve(handles.size());  // so that nothing throws once they are queued
    detail::check(skipdec_submit_many(handle_.get(), prompts.data(), prompts.size(),
                                      &submission.view, handles.data()));
    for (skipdec_request* const handle : handles) {
      requests.push_back({handle, submission.callback, params.num_completions()});
    }
    return requests;
  }

  // The C parameters together with the memory to which they point.
  struct Submission {
    explicit Submission(const Params& params) : view(params.view(stop)) {
      if (!params.callback()) return;
      callback = std::make_shared<detail::Callback>(params.callback());
      view.callback = detail::Callback::call;
      view.user_data = callback.get();
    }

    std::vector<const char*> stop;
    skipdec_params view;
    std::shared_ptr<detail::Callback> callback;
  };

  static const char* optional_schedule(const std::optional<std::string>& schedule) {
    return schedule ? detail::null_terminated(*schedule, "schedule") : nullptr;
  }

  static Score taken(skipdec_score* score) {
    const std::unique_ptr<skipdec_score, ReleaseScore> handle(score);
    const skipdec_score_values& values = *skipdec_score_get(score);
    return {detail::copied(values.token_ids, values.num_tokens),
            detail::copied(values.logprobs, values.num_tokens),
            detail::copied(values.layers, values.num_tokens)};
  }

  std::unique_ptr<skipdec_engine, Close> handle_;
};

}  // namespace skipdec

#endif
