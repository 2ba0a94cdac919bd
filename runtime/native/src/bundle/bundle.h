// A bundle on disk, opened only if whole.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bundle/manifest.h"
#include "schedule/schedules.h"

namespace skipdec::runtime {

enum class Verify {
  kFull,    // every file is hashed, weights on threads beside the loading: see await_weights
  kGraphs,  // all but weights, whose sizes are compared
};

// The directory is held open: what `locate` leads to is of the one that was checked, whatever takes
// its name. Immutable, any thread.
class Bundle {
 public:
  // Throws Error (kBundle) naming the file that is wrong: both digests, sizes, SHA-256, links that
  // leave the bundle, limits on counts and sizes before anything is allocated for them. What lies
  // at
  // ``path`` in place of a bundle is said: a checkpoint, an unfinished export.
  static std::shared_ptr<const Bundle> open(const std::string& path, Verify verify);

  virtual ~Bundle() = default;
  Bundle() = default;
  Bundle(const Bundle&) = delete;
  Bundle& operator=(const Bundle&) = delete;

  virtual const std::string& path() const = 0;  // absolute, links resolved
  virtual const Manifest& manifest() const = 0;
  virtual const Schedules& schedules() const = 0;
  // A path for `open` and for libraries that read files by path, valid as long as this object.
  virtual std::string locate(const std::string& relative) const = 0;
  // The whole content of a file that the manifest lists, checked against its record once more.
  virtual std::string read(const std::string& relative) const = 0;
  // Waits until all weights are hashed, with kFull: whoever opens a bundle loads the engines first
  // and calls this before the first token. Throws Error (kBundle) naming every file that is wrong.
  // Returns at once with kGraphs.
  virtual void await_weights() const = 0;
};

}  // namespace skipdec::runtime
