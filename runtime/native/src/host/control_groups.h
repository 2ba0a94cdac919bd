// Resource limits of this process: those of its control groups and the machine's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace skipdec::runtime {

// Returns the bytes that this process may still allocate without swapping: the minimum of the
// machine's available memory and, for each of its control groups (versions 1 and 2), the limit
// minus the anonymous memory of all the group's processes. ``process`` is the process's folder in
// /proc.
std::int64_t available_memory(const std::string& process = "/proc/self",
                              const std::string& meminfo = "/proc/meminfo");

// Returns the CPU quota of the control groups in processors; std::nullopt if there is none.
std::optional<double> processor_quota(const std::string& process = "/proc/self");

// Returns the number of processors on which this process may run, with a quota rounded up; at least
// 1.
int usable_processors();

// Returns the default number of bytes for KV caches: half of `available_memory`.
std::int64_t default_kv_memory();

}  // namespace skipdec::runtime
