// Errors; each message names the subject, the value, what is allowed and what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace skipdec::runtime {

// The values equal those of skipdec_status in skipdec.h.
enum class Status : int {
  kOk = 0,
  kUsage = 1,        // an argument is not allowed
  kBundle = 2,       // the bundle is damaged, incomplete or of another version
  kSchedule = 3,     // the exit schedule is invalid or does not fit the bundle
  kCapacity = 4,     // not enough rows, positions or KV memory
  kEnvironment = 5,  // this machine lacks something, e.g. ONNX Runtime
  kClosed = 6,       // the engine was closed
  kEngine = 7,       // an engine failed, or its logits are not finite
  kMemory = 8,       // memory ran out
  kBusy = 9,         // too many requests are waiting
  kTimeout = 10,     // the timeout expired
  kInternal = 11,    // a bug
};

// An error formatted as in Python (engines/errors.py): "subject | problem", or the number of
// problems and each problem on a line of its own.
class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& subject, const std::string& problem)
      : std::runtime_error(subject + " | " + problem), status_(status) {}
  // Reports at least one problem of one ``subject``.
  Error(Status status, const std::string& subject, const std::vector<std::string>& problems)
      : std::runtime_error(subject + " | " + listed(problems)), status_(status) {}

  Status status() const noexcept { return status_; }

 private:
  static std::string listed(const std::vector<std::string>& problems) {
    if (problems.size() == 1) return problems.front();
    std::string text = std::to_string(problems.size()) + " problems:";
    for (const std::string& problem : problems) text += "\n  - " + problem;
    return text;
  }

  Status status_;
};

// Throws Error (kUsage) for an option ``name`` whose value is below ``low`` or above ``high``.
inline void require_between(const char* name, std::int64_t value, std::int64_t low,
                            std::int64_t high) {
  if (value >= low && value <= high) return;
  const std::string allowed =
      value < low ? std::to_string(low) + " or more" : std::to_string(high) + " or less";
  throw Error(Status::kUsage, name, "is " + std::to_string(value) + "; allowed: " + allowed);
}

}  // namespace skipdec::runtime
