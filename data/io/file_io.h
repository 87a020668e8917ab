// Files read whole or mapped, and files written so that a crash leaves the old one or the new one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "tensor/error.h"

namespace brine::data {

using Path = std::filesystem::path;

// Takes the next bytes of a file that is being written.
using ByteSink = std::function<void(std::string_view)>;

// The new content stands under its name, but the system did not confirm that it would survive a
// power cut. Every other Error of a writer means: not committed, what stood there is untouched.
struct DurabilityUncertain : Error {
  explicit DurabilityUncertain(const std::string& message) : Error(message, ErrorKind::io) {}
};

// Throws Error("PATH: cannot DOING: reason (errno N)") of the kind io, or not_found when that is
// the reason; a full disk and a used-up quota are named.
[[noreturn]] void throw_io(const Path& path, std::string_view doing, int error);

// The whole content of a regular file or a pipe; more than max_bytes is an error.
std::string read_file(const Path& path, uint64_t max_bytes = UINT64_MAX);

// A regular file in memory, read-only. It keeps the file that was opened: writers of ours rename
// a new file over the name and never touch the mapped one.
class MappedFile {
 public:
  explicit MappedFile(const Path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return data_; }
  uint64_t size() const { return size_; }
  // The same memory to write to: a page becomes the process's own with the first write to it, the
  // file never changes. Null when the system refuses.
  unsigned char* writable();
  // Hints: these bytes will be read soon, from front to back; or not again for a while (they leave
  // this process's memory, and come from the file once more when they are touched: what was written
  // to them is lost).
  void expect(uint64_t begin, uint64_t size) const;
  void forget(uint64_t begin, uint64_t size) const;

 private:
  const unsigned char* data_ = nullptr;  // null when the file is empty
  uint64_t size_ = 0;
};

// A file that did not exist before. It is locked while open, so that a sweep for the leftovers of
// dead processes spares it.
class NewFile {
 public:
  explicit NewFile(const Path& path);  // an existing file is an error
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::string_view bytes);
  void sync();  // fsync: without it the content is not safe
  uint64_t written() const { return written_; }

 private:
  Path path_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Replaces `target` at commit() and not before: a temporary file beside it, fsync, rename, fsync of
// the directory. Dropped without commit() it leaves nothing behind. A symbolic link at `target` is
// replaced, not followed.
class AtomicFile {
 public:
  explicit AtomicFile(const Path& target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes) { file_.write(bytes); }
  void commit();  // throws Error when not committed, DurabilityUncertain when only that is open

 private:
  Path target_, temporary_;
  NewFile file_;
  bool renamed_ = false;
};

void write_file_atomic(const Path& target, std::string_view bytes);

// Makes the names in a directory durable.
void sync_dir(const Path& dir);
// sync_dir() of the directory that holds `renamed`; failure is DurabilityUncertain.
void sync_parent_of(const Path& renamed);

// Bytes an unprivileged user can still write where `path` is or would be.
uint64_t free_disk_bytes(const Path& path);

}  // namespace brine::data
