// Temporary files and directories: beside their target, locked while in use, swept when stale.
#pragma once

#include <vector>

#include "data/io/file_io.h"

namespace brine::data {

// Every temporary of ours begins with '.' and ends like this.
inline constexpr const char* kTemporarySuffix = ".brine-tmp";

// A name beside `target` that nothing has yet.
Path free_temporary_name(const Path& target);

// A directory that is filled under a temporary name and then published under its own. Dropped
// without publish() it is removed.
class TemporaryDir {
 public:
  // PARENT/.NAME.brine-tmp; what a dead process left there is removed, a live owner is an error.
  TemporaryDir(const Path& parent, const std::string& name);
  ~TemporaryDir();
  TemporaryDir(const TemporaryDir&) = delete;
  TemporaryDir& operator=(const TemporaryDir&) = delete;

  const Path& path() const { return path_; }
  // fsync, rename to PARENT/NAME, fsync of the parent. A directory that stands there is exchanged
  // in one step and then removed; where the file system cannot do that it is an error.
  void publish();
  // The same, but what stands there by now is an error and stays.
  void publish_new();

 private:
  Path parent_, target_, path_;
  int lock_ = -1;
  bool published_ = false;
};

// Removes a file or a whole directory so that a crash leaves it complete, gone or as a temporary.
void remove_atomic(const Path& path);

// Removes the temporaries in `dir` that no live process holds; returns their names. A directory
// that does not exist holds none.
std::vector<Path> remove_stale_temporaries(const Path& dir);

}  // namespace brine::data
