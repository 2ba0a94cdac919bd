// Submitting to a service.
#pragma once

#include <memory>
#include <utility>

#include "service/service.h"

namespace skipdec::runtime::testing {

// Submits one request of the default schedule, without a deadline.
inline std::shared_ptr<Ticket> submit(Service& service, const TokenSpan& prompt,
                                      const SamplingParams& params, OnDelta on_delta = {}) {
  return service.submit_many({prompt}, params, "", 0, {std::move(on_delta)}).front();
}

}  // namespace skipdec::runtime::testing
