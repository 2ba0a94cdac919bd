// Resource limits of this process: those of its control groups and the machine's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace skipdec::runtime {

// Returns the memory limit of this process's control groups in bytes, for both versions of the
// hierarchy; std::nullopt if there is none. ``process`` is the process's folder in /proc.
std::optional<std::int64_t> memory_limit(const std::string& process = "/proc/self");

// Returns the CPU quota of the control groups in processors; std::nullopt if there is none.
std::optional<double> processor_quota(const std::string& process = "/proc/self");

// Number of processors that this process may run on, with a quota rounded up; at least 1.
int usable_processors();

// Resident memory of this process without mapped files, in bytes.
std::int64_t anonymous_bytes();

// Default number of bytes for KV caches: half of the memory that this process may still use, for
// example 6 GiB if it may use 16 GiB and holds 4 GiB outside mapped files.
std::int64_t default_kv_memory();

}  // namespace skipdec::runtime
