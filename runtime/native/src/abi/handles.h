// What the opaque handles of skipdec.h are.
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

// A delta as C sees it: views of memory that this owns, or of the delta's.
class DeltaView {
 public:
  const skipdec_delta& show(const Delta& delta);

 private:
  skipdec_delta shown_{};
  std::vector<skipdec_logprob> logprobs_;
};

// The same of a completion, which outlives it.
class CompletionView {
 public:
  explicit CompletionView(const Completion& completion);
  const skipdec_completion& shown() const { return shown_; }

 private:
  std::vector<skipdec_logprob> logprobs_;
  skipdec_completion shown_{};
};

// Copies of what ``given`` points to. Throws Error (kUsage).
SamplingParams sampling_params(const skipdec_params& given);
const skipdec_params& default_params();

}  // namespace skipdec::runtime

struct skipdec_request {
  std::shared_ptr<skipdec::runtime::Ticket> ticket;
  std::weak_ptr<skipdec::runtime::Service> service;
  std::optional<skipdec::runtime::Delta> delta;  // the last one that was asked for
  skipdec::runtime::DeltaView delta_view;
  std::vector<std::unique_ptr<skipdec::runtime::CompletionView>> completions;  // once asked for
};

struct skipdec_score {
  skipdec::runtime::TokenSpan token_ids;
  skipdec::runtime::ScoreResult result;
  skipdec_score_values values{};
};
