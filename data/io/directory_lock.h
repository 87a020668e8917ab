// One process at a time in a directory.
#pragma once

#include <string>

#include "data/io/file_io.h"

namespace brine::data {

// A flock on the directory itself for the lifetime of the object: no file remains, and the
// system releases the lock of a process that ends. On a file system without locks nothing is
// locked.
class DirectoryLock {
 public:
  // Throws "DIR: another process WHAT" when another one has the lock ("is writing this dump").
  DirectoryLock(const Path& dir, const std::string& what);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace brine::data
