// Helpers for error messages.
#pragma once

#include <string>

#include "errors.h"

namespace skipdec::runtime {

// Returns the message of the Error that ``call`` throws; "" if it throws none.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace skipdec::runtime
