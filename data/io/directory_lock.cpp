// flock on a directory.
#include "data/io/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace brine::data {

DirectoryLock::DirectoryLock(const Path& dir, const std::string& what) {
  fd_ = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) throw_io(dir, "open", errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(fd_);
    throw Error(dir.string() + ": another process " + what);
  }
}

DirectoryLock::~DirectoryLock() { ::close(fd_); }

}  // namespace brine::data
