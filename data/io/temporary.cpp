// Temporaries: one is in use exactly while its creator has a flock on it, which kill -9 releases.
#include "data/io/temporary.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace brine::data {
namespace {

Path temporary_name(const Path& target, const std::string& middle) {
  return target.parent_path() / ("." + target.filename().string() + middle + kTemporarySuffix);
}

bool is_temporary_name(const std::string& name) {
  return name.starts_with('.') && name.ends_with(kTemporarySuffix);
}

bool in_use(const Path& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  bool held = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

void remove_tree(const Path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_io(path, "remove", error.value());
}

bool occupied(const Path& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

}  // namespace

Path free_temporary_name(const Path& target) {
  check(target.has_filename(), target.string(), ": is not the name of a file");
  std::string process = "." + std::to_string(::getpid());
  for (int i = 0;; ++i) {
    Path name = temporary_name(target, process + "-" + std::to_string(i));
    if (!occupied(name)) return name;
  }
}

TemporaryDir::TemporaryDir(const Path& parent, const std::string& name)
    : parent_(parent), target_(parent / name), path_(temporary_name(target_, "")) {
  if (occupied(path_)) {
    check(!in_use(path_), path_.string(), ": another process is writing it");
    remove_tree(path_);
  }
  if (::mkdir(path_.c_str(), 0777) != 0) throw_io(path_, "create", errno);
  lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) {
    int error = errno;
    ::rmdir(path_.c_str());
    throw_io(path_, "open", error);
  }
  ::flock(lock_, LOCK_EX | LOCK_NB);
}

TemporaryDir::~TemporaryDir() {
  if (!published_) {
    std::error_code ignored;  // the sweep at the next start removes the rest
    std::filesystem::remove_all(path_, ignored);
  }
  ::close(lock_);
}

void TemporaryDir::publish() {
  sync_path(path_);
  if (!occupied(target_)) {
    if (::rename(path_.c_str(), target_.c_str()) != 0) throw_io(target_, "create", errno);
    published_ = true;
  } else {
    // The old directory gets the temporary name, and the destructor removes it there.
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0)
      throw_io(target_, "replace (move it away first)", errno);
  }
  sync_parent_of(target_);
}

void TemporaryDir::publish_new() {
  sync_path(path_);
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) != 0)
    throw_io(target_, "create", errno);
  published_ = true;
  sync_parent_of(target_);
}

void remove_atomic(const Path& path) {
  Path doomed = temporary_name(path, ".removed");
  if (occupied(doomed)) remove_tree(doomed);
  if (::rename(path.c_str(), doomed.c_str()) != 0) throw_io(path, "remove", errno);
  remove_tree(doomed);
}

std::vector<Path> remove_stale_temporaries(const Path& dir) {
  std::error_code error;
  std::filesystem::directory_iterator entries(dir, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) throw_io(dir, "list", error.value());
  std::vector<Path> stale;
  for (; entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (is_temporary_name(entries->path().filename().string()) && !in_use(entries->path()))
      stale.push_back(entries->path());
  }
  if (error) throw_io(dir, "list", error.value());
  for (const Path& path : stale) remove_tree(path);
  return stale;
}

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
