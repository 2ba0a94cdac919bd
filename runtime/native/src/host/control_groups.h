// Resource limits of this process: those of its control groups and the machine's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace skipdec::runtime {

// Returns the bytes that this process may still allocate without swapping: the least of what the
// machine has available and what each of its control groups, of both versions of the hierarchy, has
// left of its limit beside the anonymous memory of all its processes. ``process`` is the process's
// folder in /proc.
std::int64_t available_memory(const std::string& process = "/proc/self",
                              const std::string& meminfo = "/proc/meminfo");

// Returns the CPU quota of the control groups in processors; std::nullopt if there is none.
std::optional<double> processor_quota(const std::string& process = "/proc/self");

// Number of processors that this process may run on, with a quota rounded up; at least 1.
int usable_processors();

// Default number of bytes for KV caches: half of `available_memory`.
std::int64_t default_kv_memory();

}  // namespace skipdec::runtime
