#include "host/control_groups.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

namespace skipdec::runtime {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || number < 0) return std::nullopt;  // "max", -1
  return number;
}

// Returns the number after ``name`` at the start of a line; std::nullopt without such a line.
std::optional<std::int64_t> number_after(const std::string& name, const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    std::int64_t number = 0;
    if (words >> first >> number && first == name) return number;
  }
  return std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool is_below(const std::string& path, const std::string& root) {
  return path == root || root == "/" || path.rfind(root + "/", 0) == 0;
}

// Returns the path of the process's group for each controller, and that of version 2 for "".
std::map<std::string, std::string> own_groups(const std::string& process) {
  std::map<std::string, std::string> groups;
  std::ifstream file(process + "/cgroup");
  for (std::string line; std::getline(file, line);) {  // 4:memory:/user, or 0::/user
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) groups[""] = path;
    for (const std::string& controller : split(controllers, ',')) groups[controller] = path;
  }
  return groups;
}

// Adds the folders of a group and its ancestors, up to the mount. If the group's path is outside
// the mount, as in containers that see the host's paths, the mount itself is the group's folder.
void add_folders(const std::string& root, const std::string& place, const std::string& own,
                 std::vector<std::string>& folders) {
  std::string inside = is_below(own, root) ? own.substr(root == "/" ? 0 : root.size()) : "";
  while (!inside.empty() && inside.back() == '/') inside.pop_back();
  for (;;) {
    folders.push_back(place + inside);
    if (inside.empty()) return;
    inside.erase(inside.rfind('/'));
  }
}

// Returns the folders of the groups that limit the process in ``controller``, in both hierarchies.
std::vector<std::string> group_folders(const std::string& controller, const std::string& process) {
  const std::map<std::string, std::string> groups = own_groups(process);
  std::vector<std::string> folders;
  std::ifstream file(process + "/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> mount = split(line.substr(0, dash), ' ');
    const std::vector<std::string> system = split(line.substr(dash + 3), ' ');
    if (mount.size() < 5 || system.size() < 3) continue;
    const std::vector<std::string> options = split(system[2], ',');
    const bool is_first = system[0] == "cgroup" &&
                          std::find(options.begin(), options.end(), controller) != options.end();
    const auto own = groups.find(is_first ? controller : "");
    if ((is_first || system[0] == "cgroup2") && own != groups.end()) {
      add_folders(mount[3], mount[4], own->second, folders);
    }
  }
  return folders;
}

std::optional<double> quota_of(const std::string& folder) {
  std::string times = first_line(folder + "/cpu.max");
  if (times.empty()) {
    times =
        first_line(folder + "/cpu.cfs_quota_us") + " " + first_line(folder + "/cpu.cfs_period_us");
  }
  const std::vector<std::string> parts = split(times, ' ');
  if (parts.size() != 2) return std::nullopt;
  const auto quota = whole_number(parts[0]);  // microseconds
  const auto period = whole_number(parts[1]);
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

std::int64_t available_memory(const std::string& process, const std::string& meminfo) {
  const std::int64_t machine = sysconf(_SC_PAGE_SIZE) * sysconf(_SC_PHYS_PAGES);
  const auto available = number_after("MemAvailable:", meminfo);  // KiB
  std::int64_t least = available ? 1024 * *available : machine;
  for (const std::string& folder : group_folders("memory", process)) {
    auto anonymous = number_after("anon", folder + "/memory.stat");  // version 2
    if (!anonymous) anonymous = number_after("total_rss", folder + "/memory.stat");
    for (const char* const name : {"/memory.max", "/memory.limit_in_bytes"}) {
      const auto limit = whole_number(first_line(folder + name));
      if (limit) least = std::min(least, *limit - anonymous.value_or(0));
    }
  }
  return std::max<std::int64_t>(0, least);
}

std::optional<double> processor_quota(const std::string& process) {
  std::optional<double> least;
  for (const std::string& folder : group_folders("cpu", process)) {
    const auto quota = quota_of(folder);
    if (quota) least = std::min(least.value_or(*quota), *quota);
  }
  return least;
}

int usable_processors() {
  // The system refuses a set with fewer bits than it has processors.
  constexpr std::size_t kMostSets = 64;
  int count = 1;
  for (std::vector<cpu_set_t> sets(1); sets.size() <= kMostSets; sets.resize(2 * sets.size())) {
    const std::size_t size = sets.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, size, sets.data()) != 0) continue;
    count = std::max(1, CPU_COUNT_S(size, sets.data()));
    break;
  }
  const auto quota = processor_quota();
  return quota ? std::clamp(static_cast<int>(std::ceil(*quota)), 1, count) : count;
}

std::int64_t default_kv_memory() { return std::max<std::int64_t>(1, available_memory() / 2); }

}  // namespace skipdec::runtime
