// One process at a time in a directory.
#pragma once

#include <string>

#include "data/io/file_io.h"

namespace brine::data {

// Held while it lives, by a flock on the directory itself: no file is left behind, and a process
// that dies lets go of it. On a file system without locks it holds nothing.
class DirectoryLock {
 public:
  // Throws "DIR: another process WHAT" when another one holds it ("is writing this dump").
  DirectoryLock(const Path& dir, const std::string& what);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace brine::data
