// Engines of skipdec.h.
#include <algorithm>

#include "abi/guard.h"
#include "abi/handles.h"

namespace runtime = skipdec::runtime;
using runtime::guarded;
using runtime::required;

namespace {

const skipdec_options& default_options() {
  static const skipdec_options standard = [] {
    const runtime::ServiceOptions service;
    skipdec_options options{};
    options.size = sizeof options;
    options.max_batch_size = static_cast<int32_t>(service.batch.max_batch_size);
    options.max_waiting = static_cast<int32_t>(service.max_waiting);
    options.max_prefill_tokens = static_cast<int32_t>(service.batch.max_prefill_tokens);
    options.prefix_cache = SKIPDEC_PREFIX_CACHE_SHARED;
    return options;
  }();
  return standard;
}

// Returns the enumerator of skipdec.h with this value; the last one is ``last``. Throws Error
// (kUsage) for any other value.
template <class Enum>
Enum enumerator(int32_t value, Enum last, const char* name) {
  const auto most = static_cast<int32_t>(last);
  if (value < 0 || value > most) {
    throw runtime::Error(runtime::Status::kUsage, name,
                         "is " + std::to_string(value) + "; allowed: 0 to " + std::to_string(most) +
                             ", see skipdec.h");
  }
  return static_cast<Enum>(value);
}

runtime::ServiceOptions service_options(const skipdec_options& given) {
  runtime::ServiceOptions options;
  options.schedule = runtime::optional_name(given.schedule, "schedule", runtime::Status::kSchedule);
  options.draft = runtime::optional_name(given.draft, "draft", runtime::Status::kUsage);
  options.raw_prompts = given.raw_prompts != 0;
  options.verify = enumerator(given.verify, runtime::Verify::kGraphs, "verify");
  options.max_waiting = given.max_waiting;
  options.sessions.threads = given.threads;
  options.sessions.weights = enumerator(given.weights, runtime::WeightsPlace::kCopied, "weights");
  options.sessions.onnxruntime = runtime::text_or_empty(given.onnxruntime);
  options.batch.max_batch_size = given.max_batch_size;
  options.batch.max_model_len = given.max_model_len;
  options.batch.kv_memory =
      static_cast<std::int64_t>(std::min<uint64_t>(given.kv_memory, INT64_MAX));
  options.batch.max_prefill_tokens = given.max_prefill_tokens;
  options.batch.admission = runtime::text_or_empty(given.admission);
  options.batch.prefix_cache =
      enumerator(given.prefix_cache, runtime::PrefixSharing::kClient, "prefix_cache");
  return options;
}

skipdec_info info_of(const skipdec_engine& engine) {
  const runtime::Service& service = *engine.service;
  const runtime::ModelSpec& model = service.manifest().model;
  skipdec_info info{};
  info.model = model.name.c_str();
  info.description = service.description().c_str();
  info.schedule = service.default_schedule().c_str();
  info.draft = engine.draft.c_str();
  info.num_layers = model.num_layers;
  info.hidden_size = model.hidden_size;
  info.vocab_size = model.vocab_size;
  info.max_model_len = service.max_model_len();
  info.eos_token_id = model.eos_token_id.value_or(-1);
  info.has_tokenizer = service.no_tokenizer().empty() ? 1 : 0;
  info.no_tokenizer = service.no_tokenizer().c_str();
  info.warning = engine.warning.c_str();
  return info;
}

}  // namespace

void skipdec_options_init(skipdec_options* options, size_t size) {
  if (options == nullptr) return;
  std::memcpy(options, &default_options(), std::min(size, sizeof *options));
  options->size = size;
}

skipdec_status skipdec_engine_open(const char* path, const skipdec_options* options,
                                   skipdec_engine** engine) {
  return guarded([&] {
    *required(engine, "engine") = nullptr;
    required(path, "path");
    const skipdec_options whole = runtime::with_defaults(options, default_options(), "options");
    auto opened = std::make_unique<skipdec_engine>();
    opened->service = runtime::Service::open(path, service_options(whole));
    opened->draft = opened->service->draft();
    opened->warning = opened->service->warning();
    opened->info = info_of(*opened);
    *engine = opened.release();
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_engine_drain(skipdec_engine* engine, double timeout) {
  return guarded([&] {
    if (runtime::held(engine)->drain(timeout)) return SKIPDEC_OK;
    throw runtime::Error(runtime::Status::kTimeout, "engine", "has requests that have not ended");
  });
}

skipdec_status skipdec_engine_close(skipdec_engine* engine) {
  return guarded([&] {
    if (engine == nullptr) return SKIPDEC_OK;
    engine->service->close();
    delete engine;
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_engine_info(skipdec_engine* engine, const skipdec_info** info) {
  return guarded([&] {
    *required(info, "info") = &required(engine, "engine")->info;
    return SKIPDEC_OK;
  });
}

skipdec_status skipdec_engine_stats(skipdec_engine* engine, skipdec_stats* stats) {
  return guarded([&] {
    skipdec_stats whole = runtime::held(engine)->stats();
    whole.size = runtime::with_defaults(required(stats, "stats"), whole, "stats").size;
    std::memcpy(stats, &whole, whole.size);
    return SKIPDEC_OK;
  });
}
