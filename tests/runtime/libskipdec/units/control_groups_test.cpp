#include "host/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace skipdec::runtime {
namespace {

namespace fs = std::filesystem;

// Writes the files of a process in the control groups `groups`, on a machine with 4 KiB of free
// memory, and returns how many bytes the process may still allocate.
std::int64_t memory_of(const std::string& name, const std::string& groups,
                       const std::map<std::string, std::string>& files) {
  const fs::path root = fs::path(testing::TempDir()) / ("groups-" + name);
  fs::create_directories(root / "unified/a");
  fs::create_directories(root / "memory/a");
  std::ofstream(root / "cgroup") << groups;
  std::ofstream(root / "mountinfo")
      << "1 0 0:1 / " << (root / "unified").string() << " rw - cgroup2 cgroup2 rw\n"
      << "2 0 0:2 / " << (root / "memory").string() << " rw - cgroup cgroup rw,memory\n";
  std::ofstream(root / "meminfo") << "MemTotal: 9 kB\nMemAvailable: 4 kB\n";
  for (const auto& [path, content] : files) std::ofstream(root / path) << content;
  return available_memory(root, root / "meminfo");
}

TEST(ControlGroupsTest, AvailableMemoryIsTheLeastOfMachineAndGroups) {
  EXPECT_EQ(memory_of("none", "0::/a\n", {}), 4096);
  EXPECT_EQ(memory_of("high", "0::/a\n", {{"unified/a/memory.max", "7000\n"}}), 4096);
  EXPECT_EQ(memory_of("max", "0::/a\n", {{"unified/a/memory.max", "max\n"}}), 4096);
  EXPECT_EQ(memory_of("parent", "0::/a\n", {{"unified/memory.max", "9\n"}}), 9);
  EXPECT_EQ(memory_of("held", "0::/a\n",
                      {{"unified/a/memory.max", "350\n"},
                       {"unified/a/memory.stat", "anon 150\nfile 9000\nanon_thp 0\n"}}),
            200);
  EXPECT_EQ(memory_of("full", "0::/a\n",
                      {{"unified/a/memory.max", "350\n"}, {"unified/a/memory.stat", "anon 351\n"}}),
            0);
  EXPECT_EQ(memory_of("first", "4:memory:/a\n",
                      {{"memory/a/memory.limit_in_bytes", "8\n"},
                       {"memory/a/memory.stat", "rss 2\ntotal_rss 3\n"}}),
            5);
}

}  // namespace
}  // namespace skipdec::runtime
