#include "bundle/directory.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "errors.h"

namespace skipdec::runtime {

std::string without_links(const std::string& path) {
  std::error_code failed;
  const auto whole = std::filesystem::absolute(path, failed);
  if (failed) return path;  // the working directory was deleted
  const auto resolved = std::filesystem::weakly_canonical(whole, failed);
  return failed ? path : resolved.string();
}

HeldDirectory::HeldDirectory(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  if (!descriptor_ || ::fstat(descriptor_.number(), &opened_) != 0)
    throw Error(Status::kBundle, path_, "can't be opened (" + system_words(errno) + ")");
  root_ = "/proc/self/fd/" + std::to_string(descriptor_.number());
  struct stat held{};
  if (::stat(root_.c_str(), &held) != 0)
    root_ = path_;  // without /proc, files are found by the directory's name
}

std::optional<std::string> HeldDirectory::outside(const std::string& relative) const {
  const std::string root = without_links(root_), found = without_links(locate(relative));
  const bool is_inside = found.compare(0, root.size() + 1, root + "/") == 0;
  return is_inside ? std::nullopt : std::optional(found);
}

bool HeldDirectory::was_touched() const {
  struct stat now{}, there{};
  if (::fstat(descriptor_.number(), &now) != 0 || ::stat(path_.c_str(), &there) != 0) return true;
  const bool is_in_place = now.st_dev == there.st_dev && now.st_ino == there.st_ino;
  return !is_in_place || now.st_ctim.tv_sec != opened_.st_ctim.tv_sec ||
         now.st_ctim.tv_nsec != opened_.st_ctim.tv_nsec;
}

}  // namespace skipdec::runtime
