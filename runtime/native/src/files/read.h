// Bounded reading of untrusted files.
#pragma once

#include <cstddef>
#include <string>

#include "json/fields.h"

namespace skipdec::runtime {

// Owns an open file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int number = -1) noexcept : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int number() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_;
};

// An opened file; ``problem`` says why it cannot be read, e.g. "No such file or directory".
struct Opened {
  FileDescriptor file;
  std::string problem;
  bool is_missing = false;
};

// Opens a regular file, or a link to one, for reading, without ever blocking. Anything else, such
// as a pipe or a device, is a problem and is not read.
Opened open_regular(const std::string& path);

// Reads a regular file of at most ``limit`` bytes. Throws Error, naming ``document``.
std::string read_file(const std::string& path, std::size_t limit, const Document& document);

// Returns the system's message for errno.
std::string system_words(int code);

}  // namespace skipdec::runtime
