#include "bundle/records.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "files/sha256.h"
#include "host/control_groups.h"
#include "texts.h"

namespace skipdec::runtime {
namespace {

// Returns the digest of an open file; empty, with errno, if reading fails or is stopped.
std::string hashed(int file, const std::atomic<bool>& is_stopped) {
  constexpr std::size_t kChunk = std::size_t{1} << 18;  // stays in the L2 cache until it is hashed
  std::vector<char> chunk(kChunk);
  Sha256 hash;
  while (!is_stopped) {
    const ssize_t count = ::read(file, chunk.data(), chunk.size());
    if (count == 0) return hash.hex_digest();
    if (count < 0 && errno != EINTR) return "";
    if (count > 0) hash.update(chunk.data(), static_cast<std::size_t>(count));
  }
  errno = ECANCELED;
  return "";
}

}  // namespace

std::string record_problem(const HeldDirectory& directory, const FileRecord& record, bool is_hashed,
                           const std::atomic<bool>& is_stopped) {
  if (const auto outside = directory.outside(record.path))
    return "is a link to " + *outside + ", outside the bundle; copy the file into the bundle";
  const Opened opened = open_regular(directory.locate(record.path));
  if (opened.is_missing) return "is missing";
  if (!opened.problem.empty()) return "can't be read (" + opened.problem + ")";
  struct stat about{};
  if (::fstat(opened.file.number(), &about) != 0)
    return "can't be read (" + system_words(errno) + ")";
  const auto size = static_cast<std::uint64_t>(about.st_size);
  if (size != record.size)
    return "has " + grouped(about.st_size) + " bytes; expected " +
           grouped(static_cast<std::int64_t>(record.size));
  if (!is_hashed) return "";
  const std::string digest = hashed(opened.file.number(), is_stopped);
  if (digest.empty()) return "can't be read (" + system_words(errno) + ")";
  return digest == record.sha256 ? ""
                                 : "has SHA-256 " + digest.substr(0, 12) + "…; expected " +
                                       record.sha256.substr(0, 12) + "…";
}

FileHashes::FileHashes(const HeldDirectory& directory, std::vector<FileRecord> records)
    : directory_(directory), records_(std::move(records)), found_(records_.size()) {
  constexpr std::size_t kMostThreads = 8;  // more threads only wait for the disk or memory
  std::sort(records_.begin(), records_.end(),
            [](const auto& first, const auto& second) { return first.size > second.size; });
  const std::size_t count =
      std::min({records_.size(), kMostThreads, static_cast<std::size_t>(usable_processors())});
  try {
    while (threads_.size() < count) threads_.emplace_back([this] { hash(); });
  } catch (const std::exception&) {  // the system allows no more threads
    if (threads_.empty()) hash();
  }
}

FileHashes::~FileHashes() {
  is_stopped_ = true;
  join();
}

std::vector<std::string> FileHashes::problems() {
  join();
  std::vector<std::string> wrong;
  for (std::size_t i = 0; i < records_.size(); ++i)
    if (!found_[i].empty()) wrong.push_back(records_[i].path + ": " + found_[i]);
  return wrong;
}

void FileHashes::hash() {
  for (std::size_t i = next_++; i < records_.size() && !is_stopped_; i = next_++) {
    try {
      found_[i] = record_problem(directory_, records_[i], true, is_stopped_);
    } catch (const std::exception& error) {
      found_[i] = std::string("can't be read (") + error.what() + ")";
    }
  }
}

void FileHashes::join() {
  const std::scoped_lock lock(joining_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace skipdec::runtime
