#include "service/ticket.h"

namespace skipdec::runtime {

bool Ticket::tell(const Delta& delta) {
  const std::scoped_lock lock(telling_);
  return is_released_ || on_delta(delta);
}

void Ticket::release() {
  const std::scoped_lock lock(telling_);
  is_released_ = true;
}

}  // namespace skipdec::runtime
