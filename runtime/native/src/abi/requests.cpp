// Requests of skipdec.h.
#include <algorithm>
#include <mutex>
#include <utility>

#include "abi/guard.h"
#include "abi/handles.h"
#include "scheduling/drafting/draft_resolver.h"

namespace runtime = skipdec::runtime;
using runtime::guarded;
using runtime::required;

namespace {

runtime::OnDelta on_delta_of(const skipdec_params& params) {
  if (params.callback == nullptr) return {};
  return [callback = params.callback, user_data = params.user_data](const runtime::Delta& delta) {
    const skipdec_delta view = runtime::shown(delta);
    return callback(user_data, &view) == 0;
  };
}

runtime::Prompt prompt_of(const runtime::Service& service, const skipdec_prompt& given,
                          const skipdec_params& params) {
  if (given.text != nullptr && params.rendered_chat != 0) return runtime::RenderedChat{given.text};
  if (given.text != nullptr) return std::string(given.text);
  if (given.num_tokens > 0) required(given.token_ids, "token_ids");
  runtime::require_token_count("prompt", given.num_tokens, service.manifest().model.max_seq_len);
  return runtime::TokenSpan(given.token_ids, given.token_ids + given.num_tokens);
}

// Submits ``count`` prompts; ``requests`` has room for ``count`` handles.
skipdec_status submit(const std::shared_ptr<runtime::Service>& service,
                      const skipdec_prompt* prompts, size_t count, const skipdec_params* params,
                      skipdec_request** requests) {
  const skipdec_params whole = runtime::with_defaults(params, runtime::default_params(), "params");
  std::vector<runtime::Prompt> given;
  std::vector<std::unique_ptr<skipdec_request>> made;
  for (std::size_t index = 0; index < count; ++index) {
    given.push_back(prompt_of(*service, prompts[index], whole));
    made.push_back(std::make_unique<skipdec_request>());
    made.back()->service = service;
  }
  const auto tickets = service->submit_many(
      given, runtime::sampling_params(whole, service->manifest().model.sampling_defaults),
      runtime::optional_name(whole.schedule, "schedule", runtime::Status::kSchedule),
      whole.deadline, on_delta_of(whole), runtime::text_or_empty(whole.client),
      runtime::wants_drafts(runtime::optional_name(whole.draft, "draft", runtime::Status::kUsage)));
  for (std::size_t index = 0; index < count; ++index) {
    made[index]->ticket = tickets[index];
    requests[index] = made[index].release();
  }
  return SKIPDEC_OK;
}

runtime::Error timed_out() {
  return {runtime::Status::kTimeout, "request", "has not got that far in time; wait again"};
}

void require_ended(const runtime::Ticket& ticket) {
  ticket.require_own();
  const runtime::Mailbox& mailbox = ticket.mailbox;
  if (mailbox.progress() == runtime::Progress::kRunning) {
    throw runtime::Error(runtime::Status::kUsage, "request", "has not ended; wait for it");
  }
  mailbox.require_open();
}

}  // namespace

skipdec_status skipdec_submit_text(skipdec_engine* engine, const char* prompt,
                                   const skipdec_params* params, skipdec_request** request) {
  return guarded([&] {
    *required(request, "request") = nullptr;
    const skipdec_prompt given{required(prompt, "prompt"), nullptr, 0};
    return submit(runtime::held(engine), &given, 1, params, request);
  });
}

skipdec_status skipdec_submit_tokens(skipdec_engine* engine, const int64_t* token_ids,
                                     size_t num_tokens, const skipdec_params* params,
                                     skipdec_request** request) {
  return guarded([&] {
    *required(request, "request") = nullptr;
    const skipdec_prompt given{nullptr, token_ids, num_tokens};
    return submit(runtime::held(engine), &given, 1, params, request);
  });
}

skipdec_status skipdec_submit_many(skipdec_engine* engine, const skipdec_prompt* prompts,
                                   size_t count, const skipdec_params* params,
                                   skipdec_request** requests) {
  return guarded([&] {
    const std::shared_ptr<runtime::Service> service = runtime::held(engine);
    if (count == 0) return SKIPDEC_OK;
    service->require_may_wait(count);
    std::fill_n(required(requests, "requests"), count, nullptr);
    required(prompts, "prompts");
    return submit(service, prompts, count, params, requests);
  });
}

skipdec_status skipdec_request_next(skipdec_request* request, double timeout,
                                    const skipdec_delta** delta) {
  return guarded([&] {
    *required(delta, "delta") = nullptr;
    runtime::Ticket& ticket = *required(request, "request")->ticket;
    ticket.require_may_wait(timeout);
    runtime::Received received = ticket.mailbox.next(timeout);
    request->delta = std::move(received.delta);
    if (request->delta) {
      request->delta_view = runtime::shown(*request->delta);
      *delta = &request->delta_view;
      return SKIPDEC_OK;
    }
    if (received.progress == runtime::Progress::kRunning) throw timed_out();
    ticket.mailbox.require_open();
    return SKIPDEC_END;
  });
}

skipdec_status skipdec_request_wait(skipdec_request* request, double timeout) {
  return guarded([&] {
    runtime::Ticket& ticket = *required(request, "request")->ticket;
    ticket.require_may_wait(timeout);
    if (!ticket.mailbox.wait(timeout)) throw timed_out();
    ticket.mailbox.require_open();
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_request_cancel(skipdec_request* request) {
  return guarded([&] {
    const auto service = required(request, "request")->service.lock();
    if (service) service->cancel(request->ticket->number);
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_request_completion(skipdec_request* request, int64_t index,
                                          const skipdec_completion** completion) {
  return guarded([&] {
    *required(completion, "completion") = nullptr;
    const runtime::Ticket& ticket = *required(request, "request")->ticket;
    require_ended(ticket);
    const auto& completions = ticket.mailbox.completions();
    if (index < 0 || static_cast<std::size_t>(index) >= completions.size()) {
      throw runtime::Error(runtime::Status::kUsage, "index",
                           "is " + std::to_string(index) + "; allowed: 0 to " +
                               std::to_string(completions.size() - 1));
    }
    std::call_once(request->completions_made, [&] {
      std::vector<skipdec_completion> made;
      made.reserve(completions.size());
      for (const runtime::Completion& each : completions) made.push_back(runtime::shown(each));
      request->completions = std::move(made);
    });
    *completion = &request->completions[static_cast<std::size_t>(index)];
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_request_prompt(skipdec_request* request, const int64_t** token_ids,
                                      size_t* num_tokens) {
  return guarded([&] {
    const runtime::TokenSpan& prompt = required(request, "request")->ticket->prompt;
    *required(token_ids, "token_ids") = prompt.data();
    *required(num_tokens, "num_tokens") = prompt.size();
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_request_schedule(skipdec_request* request, const char** schedule) {
  return guarded([&] {
    *required(schedule, "schedule") =
        required(request, "request")->ticket->schedule->text().c_str();
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_request_layers(skipdec_request* request, int64_t count,
                                      const int64_t** layers) {
  return guarded([&] {
    *required(layers, "layers") = nullptr;
    *layers = required(request, "request")->ticket->schedule->layers(count).data();
    return SKIPDEC_OK;
  });
}

void skipdec_request_release(skipdec_request* request) {
  // In a forked child, threads that no longer exist may hold the request's locks, so leak its
  // memory.
  if (request == nullptr || request->ticket->is_inherited()) return;
  request->ticket->release();
  skipdec_request_cancel(request);
  delete request;
}
