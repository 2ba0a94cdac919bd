// Scoring and tokenizing functions of skipdec.h.
#include <algorithm>

#include "abi/guard.h"
#include "abi/handles.h"

namespace runtime = skipdec::runtime;
using runtime::guarded;
using runtime::required;

namespace {

skipdec_status make_score(runtime::Service& service, const runtime::Prompt& prompt,
                          const runtime::Prompt& continuation, const char* schedule,
                          skipdec_score** score) {
  auto made = std::make_unique<skipdec_score>();
  made->result = service.score(
      prompt, continuation,
      runtime::optional_name(schedule, "schedule", runtime::Status::kSchedule), made->token_ids);
  made->values = {made->token_ids.data(), made->result.logprobs.data(), made->result.layers.data(),
                  made->token_ids.size()};
  *score = made.release();
  return SKIPDEC_OK;
}

runtime::TokenSpan tokens(const runtime::Service& service, const char* subject,
                          const int64_t* token_ids, size_t count) {
  if (count > 0) required(token_ids, "token_ids");
  runtime::require_token_count(subject, count, service.manifest().model.max_seq_len);
  return {token_ids, token_ids + count};
}

}  // namespace

skipdec_status skipdec_score_tokens(skipdec_engine* engine, const int64_t* prompt,
                                    size_t prompt_tokens, const int64_t* continuation,
                                    size_t continuation_tokens, const char* schedule,
                                    skipdec_score** score) {
  return guarded([&] {
    *required(score, "score") = nullptr;
    const auto service = runtime::held(engine);
    return make_score(*service, tokens(*service, "prompt", prompt, prompt_tokens),
                      tokens(*service, "continuation", continuation, continuation_tokens), schedule,
                      score);
  });
}

skipdec_status skipdec_score_text(skipdec_engine* engine, const char* prompt,
                                  const char* continuation, const char* schedule,
                                  skipdec_score** score) {
  return guarded([&] {
    *required(score, "score") = nullptr;
    return make_score(*runtime::held(engine), std::string(required(prompt, "prompt")),
                      std::string(required(continuation, "continuation")), schedule, score);
  });
}

const skipdec_score_values* skipdec_score_get(const skipdec_score* score) {
  return score == nullptr ? nullptr : &score->values;
}

void skipdec_score_release(skipdec_score* score) { delete score; }

skipdec_status skipdec_encode(skipdec_engine* engine, const char* text, int32_t is_prompt,
                              int64_t* token_ids, size_t capacity, size_t* num_tokens) {
  return guarded([&] {
    const auto service = runtime::held(engine);
    const runtime::Tokenizer& tokenizer = service->tokenizer();
    const std::string given = required(text, "text");
    const std::vector<std::int64_t> ids =
        is_prompt != 0 ? tokenizer.encode_prompt(given) : tokenizer.encode(given, false, "text");
    *required(num_tokens, "num_tokens") = ids.size();
    if (capacity > 0) {
      std::copy_n(ids.begin(), std::min(capacity, ids.size()), required(token_ids, "token_ids"));
    }
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_decode(skipdec_engine* engine, const int64_t* token_ids, size_t num_tokens,
                              int32_t skip_special_tokens, char* text, size_t capacity,
                              size_t* num_bytes) {
  return guarded([&] {
    const auto service = runtime::held(engine);
    const runtime::Tokenizer& tokenizer = service->tokenizer();
    if (num_tokens > 0) required(token_ids, "token_ids");
    const std::string decoded =
        tokenizer.decode({token_ids, token_ids + num_tokens}, skip_special_tokens != 0);
    *required(num_bytes, "num_bytes") = decoded.size();
    if (capacity > 0) {
      const std::size_t count = std::min(capacity - 1, decoded.size());
      std::copy_n(decoded.data(), count, required(text, "text"));
      text[count] = 0;
    }
    return SKIPDEC_OK;
  });
}
