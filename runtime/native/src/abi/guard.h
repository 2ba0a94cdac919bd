// The boundary to C: no exception crosses it, and each thread keeps the message of its last error.
#pragma once

#include <skipdec/skipdec.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "errors.h"

namespace skipdec::runtime {

// Stores ``words`` for this thread's skipdec_last_error(), truncated to its fixed memory, with "?"
// for bytes that are not UTF-8, such as those of a path.
void keep_error(const char* words) noexcept;

static_assert(static_cast<int>(Status::kBusy) == SKIPDEC_BUSY);
static_assert(static_cast<int>(Status::kInternal) == SKIPDEC_INTERNAL);

// Returns the result of ``call``, or the status of its exception.
template <class Call>
skipdec_status guarded(const Call& call) noexcept {
  try {
    return call();
  } catch (const Error& error) {
    keep_error(error.what());
    return static_cast<skipdec_status>(error.status());
  } catch (const std::bad_alloc&) {
    keep_error("memory of this machine | is used up; use a smaller batch or shorter sequences");
    return SKIPDEC_MEMORY;
  } catch (const std::length_error&) {
    keep_error("an array's length | is more than memory can hold; check the counts that are given");
    return SKIPDEC_USAGE;
  } catch (const std::exception& error) {
    keep_error(error.what());
    return SKIPDEC_INTERNAL;
  }
}

// Throws Error (kUsage) for a null pointer.
template <class Pointer>
Pointer required(Pointer pointer, const char* name) {
  if (pointer == nullptr) throw Error(Status::kUsage, name, "is NULL");
  return pointer;
}

// Returns ``given`` with defaults for fields that the caller's version lacks, or ``defaults`` for a
// null pointer. Throws Error (kUsage) for a size that no version has had.
template <class Struct>
Struct with_defaults(const Struct* given, const Struct& defaults, const char* name) {
  if (given == nullptr) return defaults;
  if (given->size < sizeof(std::size_t) || given->size > sizeof(Struct)) {
    throw Error(Status::kUsage, name,
                "has the size " + std::to_string(given->size) + "; allowed: " +
                    std::to_string(sizeof(std::size_t)) + " to " + std::to_string(sizeof(Struct)) +
                    "; set it to sizeof(skipdec_" + name + "), or by its _init function if it has" +
                    " one; a larger one is of a newer skipdec.h");
  }
  Struct whole = defaults;
  std::memcpy(&whole, given, given->size);
  return whole;
}

inline std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

// Returns ``text``, or "" for NULL. Throws Error for an empty one, which names nothing.
inline std::string optional_name(const char* text, const char* name, Status status) {
  if (text != nullptr && *text == 0)
    throw Error(status, name, "is empty; allowed: a name, or NULL");
  return text_or_empty(text);
}

}  // namespace skipdec::runtime
