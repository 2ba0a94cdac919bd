// Requests of skipdec.h.
#include "abi/guard.h"
#include "abi/handles.h"

namespace runtime = skipdec::runtime;
using runtime::guarded;
using runtime::required;

namespace {

skipdec_status submit(skipdec_engine* engine, const runtime::Prompt& prompt,
                      const skipdec_params* params, skipdec_request** request) {
  *required(request, "request") = nullptr;
  const skipdec_params whole = runtime::with_defaults(params, runtime::default_params(), "params");
  runtime::OnDelta on_delta;
  if (whole.callback != nullptr) {
    on_delta = [callback = whole.callback, user_data = whole.user_data,
                view = std::make_shared<runtime::DeltaView>()](const runtime::Delta& delta) {
      return callback(user_data, &view->show(delta)) == 0;
    };
  }
  auto made = std::make_unique<skipdec_request>();
  made->service = engine->service;
  made->ticket = engine->service->submit(prompt, runtime::sampling_params(whole),
                                         runtime::text_or_empty(whole.schedule), whole.deadline,
                                         std::move(on_delta));
  *request = made.release();
  return SKIPDEC_OK;
}

void require_ended(const runtime::Mailbox& mailbox) {
  if (mailbox.progress() == runtime::Progress::kRunning) {
    throw runtime::Error(runtime::Status::kUsage, "request", "has not ended; wait for it");
  }
  mailbox.require_open();
}

}  // namespace

skipdec_status skipdec_submit_text(skipdec_engine* engine, const char* prompt,
                                   const skipdec_params* params, skipdec_request** request) {
  return guarded([&] {
    required(engine, "engine");
    return submit(engine, std::string(required(prompt, "prompt")), params, request);
  });
}

skipdec_status skipdec_submit_tokens(skipdec_engine* engine, const int64_t* token_ids,
                                     size_t num_tokens, const skipdec_params* params,
                                     skipdec_request** request) {
  return guarded([&] {
    required(engine, "engine");
    if (num_tokens > 0) required(token_ids, "token_ids");
    runtime::require_token_count(num_tokens, engine->service->max_model_len());
    return submit(engine, runtime::TokenSpan(token_ids, token_ids + num_tokens), params, request);
  });
}

skipdec_status skipdec_request_next(skipdec_request* request, double timeout,
                                    const skipdec_delta** delta) {
  return guarded([&] {
    *required(delta, "delta") = nullptr;
    runtime::Mailbox& mailbox = required(request, "request")->ticket->mailbox;
    request->delta = mailbox.next(timeout);
    if (request->delta) {
      *delta = &request->delta_view.show(*request->delta);
      return SKIPDEC_OK;
    }
    mailbox.require_open();
    return mailbox.progress() == runtime::Progress::kEnded ? SKIPDEC_END : SKIPDEC_TIMEOUT;
  });
}

skipdec_status skipdec_request_wait(skipdec_request* request, double timeout) {
  return guarded([&] {
    runtime::Mailbox& mailbox = required(request, "request")->ticket->mailbox;
    if (!mailbox.wait(timeout)) return SKIPDEC_TIMEOUT;
    mailbox.require_open();
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
    const runtime::Mailbox& mailbox = required(request, "request")->ticket->mailbox;
    require_ended(mailbox);
    const auto& completions = mailbox.completions();
    if (index < 0 || static_cast<std::size_t>(index) >= completions.size()) {
      throw runtime::Error(runtime::Status::kUsage, "index",
                           "is " + std::to_string(index) + "; allowed: 0 to " +
                               std::to_string(completions.size() - 1));
    }
    if (request->completions.empty()) {
      for (const runtime::Completion& each : completions) {
        request->completions.push_back(std::make_unique<runtime::CompletionView>(each));
      }
    }
    *completion = &request->completions[static_cast<std::size_t>(index)]->shown();
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
    *required(schedule, "schedule") = required(request, "request")->ticket->schedule.c_str();
    return SKIPDEC_OK;
  });
}

void skipdec_request_release(skipdec_request* request) {
  if (request == nullptr) return;
  request->ticket->release();
  skipdec_request_cancel(request);
  delete request;
}
