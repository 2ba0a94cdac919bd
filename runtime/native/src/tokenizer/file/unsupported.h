// Error for tokenizers of unsupported kinds.
#pragma once

#include <string>

#include "errors.h"

namespace skipdec::runtime {

// A valid tokenizer.json of a kind that this library does not implement; its bundle runs on token
// ids only.
class UnsupportedTokenizer : public Error {
 public:
  UnsupportedTokenizer(const std::string& subject, const std::string& problem)
      : Error(Status::kBundle, subject, problem + "; this library does not implement it") {}
};

}  // namespace skipdec::runtime
