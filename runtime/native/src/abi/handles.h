// Definitions of the opaque handles of skipdec.h.
#pragma once

#include <skipdec/skipdec.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "service/service.h"

struct skipdec_engine {
  std::shared_ptr<skipdec::runtime::Service> service;
  std::string warning;
  skipdec_info info{};
};

namespace skipdec::runtime {

// A delta for C: views of memory of this object or of the delta.
class DeltaView {
 public:
  const skipdec_delta& show(const Delta& delta);

 private:
  skipdec_delta shown_{};
  std::vector<skipdec_logprob> logprobs_;
};

// A completion for C; the completion outlives it.
class CompletionView {
 public:
  explicit CompletionView(const Completion& completion);
  const skipdec_completion& shown() const { return shown_; }

 private:
  std::vector<skipdec_logprob> logprobs_;
  skipdec_completion shown_{};
};

// Copies everything that ``given`` points to. Throws Error (kUsage).
SamplingParams sampling_params(const skipdec_params& given, const SamplingDefaults& defaults);
const skipdec_params& default_params();

}  // namespace skipdec::runtime

struct skipdec_request {
  std::shared_ptr<skipdec::runtime::Ticket> ticket;
  std::weak_ptr<skipdec::runtime::Service> service;
  std::optional<skipdec::runtime::Delta> delta;  // the last one taken
  skipdec::runtime::DeltaView delta_view;
  std::vector<std::unique_ptr<skipdec::runtime::CompletionView>> completions;  // made on demand
};

struct skipdec_score {
  skipdec::runtime::TokenSpan token_ids;
  skipdec::runtime::ScoreResult result;
  skipdec_score_values values{};
};
