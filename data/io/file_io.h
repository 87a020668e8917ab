// Files read whole or mapped, and files written so that a crash leaves the old one or the new one.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "tensor/base/error.h"

namespace brine::data {

using Path = std::filesystem::path;

// Receives the next bytes of a file that is being written.
using ByteSink = std::function<void(std::string_view)>;

// The new content is under its name, but the system did not confirm that it would survive a power
// failure. Every other Error of a writer means: not committed, the earlier file is unchanged.
struct DurabilityUncertain : Error {
  explicit DurabilityUncertain(const std::string& message) : Error(message, ErrorKind::io) {}
};

// Throws Error("PATH: cannot DOING: reason (errno N)") of the kind io, or not_found when that is
// the reason; a full disk and a used-up quota are named.
[[noreturn]] void throw_io(const Path& path, std::string_view doing, int error);

// Throws if a text is that which Git LFS puts in the place of a file that was not fetched; reading
// and mapping a file does this.
void refuse_lfs_pointer(const Path& path, std::string_view text);
// The same for a file that another library reads.
void refuse_lfs_pointer(const Path& path);

// Throws if a file begins like an archive or like other compressed data; the message says how to
// unpack it. `head` is the first kPackedHead bytes, fewer of a shorter file.
inline constexpr size_t kPackedHead = 512;
void refuse_packed(const Path& path, std::string_view head);

// Whether a name from a manifest is that of a file in its directory: without a slash or a zero
// byte, not hidden, so neither "." nor "..".
bool is_plain_name(std::string_view name);

// The whole content of a regular file or a pipe; more than max_bytes is an error.
std::string read_file(const Path& path, uint64_t max_bytes = UINT64_MAX);

// The first bytes of a file, fewer of a shorter one; none if it cannot be read.
std::string read_start(const Path& path, size_t bytes);

// A regular file in memory, read-only. It refers to the file that was opened: Brine's writers
// rename a new file over the name and never change the mapped one.
class MappedFile : NonCopyable {
 public:
  explicit MappedFile(const Path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;

  const unsigned char* data() const { return data_; }
  uint64_t size() const { return size_; }
  // The same memory for writing: a page becomes private to the process at the first write to it;
  // the file never changes. Null when the system refuses.
  unsigned char* writable();
  // Hints: these bytes will be read soon, sequentially; or not again for a while (they leave this
  // process's memory and are read from the file again when accessed; writes to them are lost).
  void expect(uint64_t begin, uint64_t size) const;
  void forget(uint64_t begin, uint64_t size) const;

 private:
  const unsigned char* data_ = nullptr;  // null when the file is empty
  uint64_t size_ = 0;
};

// A number at an address of any alignment.
template <class T>
T number_from(const void* bytes) {
  T out;
  std::memcpy(&out, bytes, sizeof(T));
  return out;
}

// A new file. It is locked while open, so that a sweep for the remains of ended processes skips it.
class NewFile : NonCopyable {
 public:
  explicit NewFile(const Path& path);  // an existing file is an error
  ~NewFile();

  void write(std::string_view bytes);
  void sync();  // fsync: without it the content is not safe
  uint64_t written() const { return written_; }

 private:
  Path path_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Throws if an AtomicFile could not be there: no directory or one without access, or what stands
// there is not a regular file (a device would be replaced). For before long work.
void check_target(const Path& target);

// Replaces `target` only at commit(): a temporary file next to it, fsync, rename, fsync of the
// directory. Without commit() nothing is left. A symbolic link at `target` is replaced, not
// followed.
class AtomicFile : NonCopyable {
 public:
  explicit AtomicFile(const Path& target);
  ~AtomicFile();

  void write(std::string_view bytes) { file_.write(bytes); }
  void sync() { file_.sync(); }  // before the commit() of one of several files
  void commit();  // throws Error when not committed, DurabilityUncertain when only that is
                  // uncertain

 private:
  Path target_, temporary_;
  NewFile file_;
  bool renamed_ = false;
};

void write_file_atomic(const Path& target, std::string_view bytes);

// Makes the content of a file durable, or the names in a directory.
void sync_path(const Path& path);
// Where the file is; "." of a mere name.
Path directory_of(const Path& path);
// The path in its normal form, without a slash at its end.
Path without_slash(const Path& path);
// sync_path() of the directory of `renamed`; a failure is DurabilityUncertain.
void sync_parent_of(const Path& renamed);

// Bytes that an unprivileged user can still write at the location of `path`.
uint64_t free_disk_bytes(const Path& path);

}  // namespace brine::data
