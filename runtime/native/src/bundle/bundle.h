// A complete bundle on disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bundle/manifest.h"
#include "schedule/schedules.h"

namespace skipdec::runtime {

enum class Verify {
  kFull,    // hash every file; weights while engines load, see await_weights
  kGraphs,  // hash every file but weights, whose sizes are compared
};

// Holds the directory open, so that `locate` leads to the directory that was checked even if
// another takes its name. Immutable; any thread may use it.
class Bundle {
 public:
  // Throws Error (kBundle) naming the wrong file: checks both digests, sizes, SHA-256, links that
  // leave the bundle, and limits on counts and sizes before anything is allocated for them. The
  // message says what ``path`` is instead of a bundle, e.g. a checkpoint or an unfinished export.
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
  // Reads a file that the manifest lists and checks it against its record again. Throws Error
  // (kBundle), before reading, if the file has more than ``limit`` bytes.
  virtual std::string read(const std::string& relative, std::size_t limit) const = 0;
  // With kFull, waits until all weights are hashed; with kGraphs, returns at once. Call it after
  // the engines are loaded and before the first token. Throws Error (kBundle) naming every wrong
  // file.
  virtual void await_weights() const = 0;
  // With kFull, hashes the weights of an engine that `await_weights` leaves out: the draft layer.
  // Throws like `await_weights`.
  virtual void check_weights(const EngineSpec& spec) const = 0;
};

}  // namespace skipdec::runtime
