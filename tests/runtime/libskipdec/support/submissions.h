// Submitting to a service.
#pragma once

#include <memory>

#include "service/service.h"

namespace skipdec::runtime::support {

// Submits one request of the default schedule, without a deadline.
inline std::shared_ptr<Ticket> submit(Service& service, const TokenSpan& prompt,
                                      const SamplingParams& params, const OnDelta& on_delta = {}) {
  return service.submit_many({prompt}, params, "", 0, on_delta).front();
}

}  // namespace skipdec::runtime::support
