#include "files/read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "texts.h"

namespace skipdec::runtime {
namespace {

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "is a directory";
  if (S_ISFIFO(mode)) return "is a pipe";
  if (S_ISSOCK(mode)) return "is a socket";
  return "is a device";
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : number_(std::exchange(other.number_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

std::string system_words(int code) { return std::generic_category().message(code); }

Opened open_regular(const std::string& path) {
  Opened opened;
  opened.file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat about{};
  if (!opened.file || ::fstat(opened.file.number(), &about) != 0) {
    opened.is_missing = errno == ENOENT;
    opened.problem = system_words(errno);
  } else if (!S_ISREG(about.st_mode)) {
    opened.problem = std::string(kind_of(about.st_mode)) + "; expected a regular file";
  }
  return opened;
}

std::string read_file(const std::string& path, std::size_t limit, const Document& document) {
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  const Opened opened = open_regular(path);
  if (!opened.problem.empty()) document.refuse("", "can't be read (" + opened.problem + ")");
  std::string content;
  for (;;) {
    const std::size_t held = content.size();
    content.resize(held + std::min(kChunk, limit + 1 - held));
    const ssize_t count =
        ::read(opened.file.number(), content.data() + held, content.size() - held);
    if (count < 0 && errno != EINTR)
      document.refuse("", "can't be read (" + system_words(errno) + ")");
    content.resize(held + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return content;
    if (content.size() > limit)
      document.refuse(
          "", "is larger than " + grouped(static_cast<std::int64_t>(limit)) + " bytes, the limit");
  }
}

}  // namespace skipdec::runtime
