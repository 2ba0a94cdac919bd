// Checks of files against their records.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bundle/directory.h"
#include "bundle/manifest.h"

namespace skipdec::runtime {

// Describes how the file differs from its record; empty if it does not. Hashes the content if
// ``is_hashed``, until ``is_stopped``.
std::string record_problem(const HeldDirectory& directory, const FileRecord& record, bool is_hashed,
                           const std::atomic<bool>& is_stopped);

// Hashes files on its own threads, which end with the object.
class FileHashes {
 public:
  // Begins at once. The directory must outlive this object.
  FileHashes(const HeldDirectory& directory, std::vector<FileRecord> records);
  ~FileHashes();
  FileHashes(const FileHashes&) = delete;
  FileHashes& operator=(const FileHashes&) = delete;

  // Waits for all hashes and returns one text per wrong file, which begins with its name. Any
  // thread may call it.
  std::vector<std::string> problems();

 private:
  void hash();
  void join();

  const HeldDirectory& directory_;
  std::vector<FileRecord> records_;  // largest first
  std::vector<std::string> found_;   // problem of each record
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> is_stopped_{false};
  std::mutex joining_;
  std::vector<std::thread> threads_;
};

}  // namespace skipdec::runtime
