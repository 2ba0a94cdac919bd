#include "host/processor.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace skipdec::runtime {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool holds(const std::string& list, const std::string& word) {
  const std::vector<std::string> words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_below(const std::string& path, const std::string& root) {
  return root == "/" || path == root || path.compare(0, root.size() + 1, root + "/") == 0;
}

std::string joined(const std::string& first, const std::string& second) {
  return second.empty() || second == "/" ? first : first + "/" + second;
}

// Paths of this process's groups by controller; version 2 has "" for all of them.
std::map<std::string, std::string> own_groups(const std::string& process) {
  std::map<std::string, std::string> paths;
  std::ifstream file(process + "/cgroup");  // 4:memory:/user, or 0::/user
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) paths[""] = path;
    for (const std::string& controller : split(controllers, ',')) paths[controller] = path;
  }
  return paths;
}

// Directories of the groups that bound ``process``, in both hierarchies.
std::vector<std::string> group_directories(const std::string& controller,
                                           const std::string& process) {
  const std::map<std::string, std::string> paths = own_groups(process);
  std::vector<std::string> directories;
  std::ifstream mounts(process + "/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> mount = split(line.substr(0, dash), ' ');
    const std::vector<std::string> system = split(line.substr(dash + 3), ' ');
    if (mount.size() < 5 || system.size() < 3) continue;
    const bool is_new = system[0] == "cgroup2";
    if (!is_new && !(system[0] == "cgroup" && holds(system[2], controller))) continue;
    const auto own = paths.find(is_new ? "" : controller);
    if (own == paths.end()) continue;
    const std::string &root = mount[3], &place = mount[4];
    // A container may see its own group at the mount, under a path of the host's.
    std::string inside =
        is_below(own->second, root) ? own->second.substr(root == "/" ? 1 : root.size()) : "";
    inside.erase(0, inside.find_first_not_of('/'));
    for (;; inside.erase(
             inside.find_last_of('/') == std::string::npos ? 0 : inside.find_last_of('/'))) {
      directories.push_back(joined(place, inside));
      if (inside.empty()) break;
    }
  }
  return directories;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace

double processor_quota(const std::string& process) {
  double least = 0;
  for (const std::string& group : group_directories("cpu", process)) {
    std::string times = content_of(group + "/cpu.max");
    if (times.empty())
      times =
          content_of(group + "/cpu.cfs_quota_us") + " " + content_of(group + "/cpu.cfs_period_us");
    double quota = 0, period = 0;  // microseconds; "max" and -1 are no quota
    if (std::istringstream(times) >> quota >> period && quota > 0 && period > 0)
      least = least == 0 ? quota / period : std::min(least, quota / period);
  }
  return least;
}

int available_processors() {
  cpu_set_t set;
  const bool is_known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  const long count = is_known ? CPU_COUNT(&set) : ::sysconf(_SC_NPROCESSORS_ONLN);
  const double quota = processor_quota("/proc/self");
  const long within = quota > 0 ? std::max(1L, static_cast<long>(std::ceil(quota))) : count;
  return static_cast<int>(std::max(1L, std::min(count, within)));
}

bool integer_products_may_saturate() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;  // by the system, too
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && has_avx512 && (ecx >> 11 & 1) != 0)
    return false;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && has_avx2 && (eax >> 4 & 1) != 0)
    return false;
  return true;
#else
  return false;
#endif
}

}  // namespace skipdec::runtime
