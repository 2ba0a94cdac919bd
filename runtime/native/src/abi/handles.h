// Definitions of the opaque handles of skipdec.h.
#pragma once

#include <skipdec/skipdec.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "abi/guard.h"
#include "service/service.h"

struct skipdec_engine {
  std::shared_ptr<skipdec::runtime::Service> service;
  std::string draft, warning;
  skipdec_info info{};
};

namespace skipdec::runtime {

// Returns the engine's service and keeps it alive during a call, because another thread may close
// the engine meanwhile. Throws Error (kUsage) for a null pointer.
inline std::shared_ptr<Service> held(const skipdec_engine* engine) {
  return required(engine, "engine")->service;
}

// Return C views of a delta or a completion, which owns the memory.
skipdec_delta shown(const Delta& delta);
skipdec_completion shown(const Completion& completion);

// Copies everything that ``given`` points to. Throws Error (kUsage).
SamplingParams sampling_params(const skipdec_params& given, const SamplingDefaults& defaults);
const skipdec_params& default_params();

}  // namespace skipdec::runtime

struct skipdec_request {
  std::shared_ptr<skipdec::runtime::Ticket> ticket;
  std::weak_ptr<skipdec::runtime::Service> service;
  std::optional<skipdec::runtime::Delta> delta;  // the last one taken
  skipdec_delta delta_view{};
  std::once_flag completions_made;
  std::vector<skipdec_completion> completions;  // made on demand
};

struct skipdec_score {
  skipdec::runtime::TokenSpan token_ids;
  skipdec::runtime::ScoreResult result;
  skipdec_score_values values{};
};
