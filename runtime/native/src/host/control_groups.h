// What this process may use of the machine: its control groups' limits, and the machine's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace skipdec::runtime {

// Bytes that the groups of this process may hold, in version 2 of the hierarchy as in version 1;
// none without a limit. ``process``: its folder in /proc.
std::optional<std::int64_t> memory_limit(const std::string& process = "/proc/self");

// Processors' worth of time that they may use; none without a limit.
std::optional<double> processor_quota(const std::string& process = "/proc/self");

// Processors that this process may run on, a quota rounded up; at least 1.
int usable_processors();

// Of this process: resident memory that is no mapped file's.
std::int64_t anonymous_bytes();

// Bytes for KV caches unless somebody says otherwise: half of what this process leaves of the
// memory that it may use. 16 GiB, of which it holds 4 that are not mapped files: 6.
std::int64_t default_kv_memory();

}  // namespace skipdec::runtime
