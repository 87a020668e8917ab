// Temporary files and directories: next to their target, locked while in use, swept when stale; and
// locks of directories.
#pragma once

#include <string>
#include <vector>

#include "data/io/file_io.h"

namespace brine::data {

// Every temporary of Brine starts with '.' and ends with this.
inline constexpr const char* kTemporarySuffix = ".brine-tmp";

// An unused name next to `target`.
Path free_temporary_name(const Path& target);

// A directory that is filled under a temporary name and then published under its final one. It
// is removed without publish().
class TemporaryDir : NonCopyable {
 public:
  // PARENT/.NAME.brine-tmp; the remains of an ended process in it are removed. A running owner
  // is an error.
  TemporaryDir(const Path& parent, const std::string& name);
  ~TemporaryDir();

  const Path& path() const { return path_; }
  // fsync, rename to PARENT/NAME, fsync of the parent. An existing directory is exchanged
  // atomically and then removed; if the file system cannot do that it is an error.
  void publish();
  // As publish(), but an existing directory is an error and is kept.
  void publish_new();

 private:
  Path parent_, target_, path_;
  int lock_ = -1;
  bool published_ = false;
};

// Removes a file or a whole directory so that after a crash it is complete, removed or a temporary.
void remove_atomic(const Path& path);

// Removes the temporaries in `dir` that no running process has locked; returns their names. A
// directory that does not exist has none.
std::vector<Path> remove_stale_temporaries(const Path& dir);

// A flock on the directory itself for the lifetime of the object: no file remains, and the
// system releases the lock of a process that ends. On a file system without locks nothing is
// locked.
class DirectoryLock : NonCopyable {
 public:
  // Throws "DIR: another process WHAT" when another one has the lock ("is writing this dump").
  DirectoryLock(const Path& dir, const std::string& what);
  ~DirectoryLock();

 private:
  int fd_ = -1;
};

}  // namespace brine::data
