// Files that somebody else wrote, read within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "json/fields.h"

namespace skipdec::runtime {

// An open file, closed with this object.
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

// Why a file can't be read, e.g. "No such file or directory"; empty: it can.
struct Opened {
  FileDescriptor file;
  std::string problem;
  bool is_missing = false;
};

// A regular file, or a link to one, for reading; anything else, a pipe or a device, say, is a
// problem before it is read: nothing waits.
Opened open_regular(const std::string& path);

// The bytes of a regular file of at most ``limit``. Throws Error by ``document``.
std::string read_file(const std::string& path, std::size_t limit, const Document& document);

// "12,345"
std::string grouped(std::uint64_t number);

// What errno says.
std::string system_words(int code);

}  // namespace skipdec::runtime
