// A directory that is held open, so that all that is read from it is one directory's.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "files/read.h"

namespace skipdec::runtime {

// The directory that lay at ``path`` when this was made, whatever takes its name later: of one that
// was renamed or exchanged the files are found as before, of one that was deleted none.
class HeldDirectory {
 public:
  // Throws Error (kBundle) if there is no directory that can be opened.
  explicit HeldDirectory(std::string path);

  const std::string& path() const { return path_; }
  // Where this process finds the file ``relative`` while this object lives.
  std::string locate(const std::string& relative) const { return root_ + "/" + relative; }
  // Where links lead ``relative`` if that is outside the directory.
  std::optional<std::string> outside(const std::string& relative) const;
  // Whether the directory was renamed, replaced, deleted or changed since it was opened.
  bool was_touched() const;

 private:
  std::string path_;
  FileDescriptor descriptor_;
  struct stat opened_{};
  std::string root_;
};

// ``path`` without links; the part of it that doesn't exist as it is.
std::string without_links(const std::string& path);

}  // namespace skipdec::runtime
