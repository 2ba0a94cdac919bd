// A directory that is held open, so that all files come from the same directory.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "files/read.h"

namespace skipdec::runtime {

// The directory that ``path`` named when this object was made. If the directory is renamed or
// replaced, its files are still found; if it is deleted, none are.
class HeldDirectory {
 public:
  // Throws Error (kBundle) if there is no directory that can be opened.
  explicit HeldDirectory(std::string path);

  const std::string& path() const { return path_; }
  // Returns a path to the file ``relative`` that is valid in this process while this object lives.
  std::string locate(const std::string& relative) const { return root_ + "/" + relative; }
  // Returns the target of ``relative`` if links lead it outside the directory.
  std::optional<std::string> outside(const std::string& relative) const;
  // Returns true if the directory was renamed, replaced, deleted or changed since it was opened.
  bool was_touched() const;

 private:
  std::string path_;
  FileDescriptor descriptor_;
  struct stat opened_{};
  std::string root_;
};

// Resolves the links in ``path``; parts that do not exist stay unchanged.
std::string without_links(const std::string& path);

}  // namespace skipdec::runtime
