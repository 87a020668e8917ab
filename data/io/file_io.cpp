// File I/O on raw descriptors, so that every write, fsync and rename is explicit and checked.
#include "data/io/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <utility>

#include "data/io/temporary.h"

namespace brine::data {
namespace {

std::string reason(int error) {
  switch (error) {
    case ENOSPC:
      return "the disk is full";
    case EDQUOT:
      return "the disk quota is used up";
    case EFBIG:
      return "the file would be larger than the limit (ulimit -f) or the file system allows";
    default:
      return std::generic_category().message(error);
  }
}

// Bytes of a pointer of Git LFS, by its specification.
constexpr uint64_t kMaxPointer = 1024;

// Closes on every way out.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

int open_retrying(const Path& path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

Path directory_of(const Path& path) {
  return path.has_parent_path() ? path.parent_path() : Path(".");
}

Path without_slash(const Path& path) {
  Path out = path.lexically_normal();
  return out.has_filename() ? out : out.parent_path();
}

void throw_io(const Path& path, std::string_view doing, int error) {
  throw Error(join(path.string(), ": cannot ", doing, ": ", reason(error), " (errno ", error, ")"),
              error == ENOENT ? ErrorKind::not_found : ErrorKind::io);
}

void refuse_lfs_pointer(const Path& path, std::string_view text) {
  if (!text.starts_with("version https://git-lfs.github.com/spec/")) return;
  const std::string_view key = "\nsize ";
  const size_t at = text.find(key);
  std::string_view size = at == text.npos ? "" : text.substr(at + key.size());
  size = size.substr(0, size.find_first_not_of("0123456789"));
  throw Error(join(path.string(), ": is a pointer of Git LFS, the file itself (",
                   size.empty() ? "?" : size, " bytes) was not fetched; run git lfs pull"),
              ErrorKind::format);
}

void refuse_lfs_pointer(const Path& path) {
  std::error_code ignored;
  const bool small = std::filesystem::is_regular_file(path, ignored) &&
                     std::filesystem::file_size(path, ignored) <= kMaxPointer;
  if (small) read_file(path, kMaxPointer);
}

void refuse_packed(const Path& path, std::string_view head) {
  struct Packed {
    std::string_view bytes;
    size_t at;
    const char *name, *unpack;
  };
  constexpr Packed kPacked[] = {{"\x1f\x8b", 0, "gzip file", "gunzip"},
                                {"\xfd\x37zXZ", 0, "xz file", "unxz"},
                                {"1AY&SY", 4, "bzip2 file", "bunzip2"},
                                {"ustar", 257, "tar archive", "tar xf"},
                                {"PK\x03\x04", 0, "zip archive", "unzip"},
                                {"PK\x05\x06", 0, "zip archive", "unzip"},
                                {"7z\xbc\xaf\x27\x1c", 0, "7z archive", "7z x"},
                                {"\x28\xb5\x2f\xfd", 0, "zstd file", "unzstd"}};
  for (const Packed& p : kPacked) {
    if (head.size() < p.at || !head.substr(p.at).starts_with(p.bytes)) continue;
    const bool tar = path.stem().extension() == ".tar";
    throw Error(join(path.string(), ": a ", p.name, ", which is not read; unpack it first: ",
                     tar ? "tar xf" : p.unpack, " ", path.string()),
                ErrorKind::format);
  }
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name[0] != '.' && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

std::string read_file(const Path& path, uint64_t max_bytes) {
  Descriptor in{open_retrying(path, O_RDONLY)};
  if (in.fd < 0) throw_io(path, "open", errno);
  struct stat info = {};
  if (::fstat(in.fd, &info) != 0) throw_io(path, "examine", errno);
  check_format(S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode), path.string(),
               ": is neither a file nor a pipe");
  auto refuse_size = [&](uint64_t size) {
    check_format(size <= max_bytes, path.string(), ": contains at least ", size, " bytes, at most ",
                 max_bytes, " are allowed");
  };
  std::string text;
  if (S_ISREG(info.st_mode)) {
    refuse_size(uint64_t(info.st_size));
    text.resize(size_t(info.st_size) + 1);  // one more, so that the end is found without growing
  }
  size_t have = 0;
  while (true) {
    if (have == text.size()) text.resize(have + (1 << 16));
    ssize_t n = ::read(in.fd, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_io(path, "read", errno);
    if (n == 0) break;
    have += size_t(n);
    refuse_size(have);
  }
  text.resize(have);
  refuse_lfs_pointer(path, text);
  return text;
}

std::string read_start(const Path& path, size_t bytes) {
  std::ifstream in(path, std::ios::binary);
  std::string text(bytes, '\0');
  in.read(text.data(), std::streamsize(bytes));
  text.resize(size_t(in.gcount()));
  return text;
}

MappedFile::MappedFile(const Path& path) {
  // O_NONBLOCK: opening a named pipe must fail, not wait.
  Descriptor in{open_retrying(path, O_RDONLY | O_NONBLOCK)};
  if (in.fd < 0) throw_io(path, "open", errno);
  struct stat info = {};
  if (::fstat(in.fd, &info) != 0) throw_io(path, "examine", errno);
  check_format(S_ISREG(info.st_mode), path.string(), ": is not a regular file");
  if (info.st_size == 0) return;
  void* at = ::mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_PRIVATE, in.fd, 0);
  if (at == MAP_FAILED) throw_io(path, "map", errno);
  data_ = static_cast<const unsigned char*>(at);
  size_ = uint64_t(info.st_size);
  try {
    refuse_lfs_pointer(path, {reinterpret_cast<const char*>(data_), std::min(size_, kMaxPointer)});
  } catch (const Error&) {
    ::munmap(at, size_t(info.st_size));
    throw;
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<unsigned char*>(data_), size_);
}

unsigned char* MappedFile::writable() {
  auto* data = const_cast<unsigned char*>(data_);
  if (data && ::mprotect(data, size_, PROT_READ | PROT_WRITE) != 0) return nullptr;
  return data;
}

namespace {

// Advice on the pages that hold [begin, begin + size); `inside` leaves out those shared with
// others.
void advise(const unsigned char* data, uint64_t begin, uint64_t size, int advice, bool inside) {
  static const uint64_t page = uint64_t(::sysconf(_SC_PAGESIZE));
  uint64_t end = begin + size;
  begin = (inside ? begin + page - 1 : begin) / page * page;
  end = (inside ? end : end + page - 1) / page * page;
  if (begin >= end) return;
  ::madvise(const_cast<unsigned char*>(data) + begin, end - begin,
            advice);  // a failure has no effect
}

}  // namespace

void MappedFile::expect(uint64_t begin, uint64_t size) const {
  if (begin < size_) advise(data_, begin, std::min(size, size_ - begin), MADV_WILLNEED, false);
}

void MappedFile::forget(uint64_t begin, uint64_t size) const {
  // Memory beyond the mapping belongs to others.
  if (begin < size_) advise(data_, begin, std::min(size, size_ - begin), MADV_DONTNEED, true);
}

NewFile::NewFile(const Path& path) : path_(path) {
  fd_ = open_retrying(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (fd_ < 0) throw_io(path, "create", errno);
  ::flock(fd_, LOCK_EX | LOCK_NB);  // no locks on this file system: nothing else depends on it
}

NewFile::~NewFile() { ::close(fd_); }

void NewFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw_io(path_, "write", n < 0 ? errno : EIO);
    bytes.remove_prefix(size_t(n));
    written_ += uint64_t(n);
  }
}

void NewFile::sync() {
  if (::fsync(fd_) != 0) throw_io(path_, "fsync", errno);
}

void check_target(const Path& target) {
  const Path directory = directory_of(target);
  check_found(std::filesystem::is_directory(directory), target.string(), ": there is no directory ",
              directory.string());
  if (::access(directory.c_str(), W_OK | X_OK) != 0) throw_io(directory, "write to", errno);
  const bool regular = !std::filesystem::exists(target) || std::filesystem::is_regular_file(target);
  check(regular, target.string(), ": is not a file that can be replaced");
}

AtomicFile::AtomicFile(const Path& target)
    : target_((check_target(target), target)),
      temporary_(free_temporary_name(target)),
      file_(temporary_) {}

AtomicFile::~AtomicFile() {
  if (!renamed_) ::unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  file_.sync();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) throw_io(target_, "replace", errno);
  renamed_ = true;
  sync_parent_of(target_);
}

void write_file_atomic(const Path& target, std::string_view bytes) {
  AtomicFile file(target);
  file.write(bytes);
  file.commit();
}

void sync_path(const Path& path) {
  Descriptor in{open_retrying(path, O_RDONLY)};
  if (in.fd < 0) throw_io(path, "open", errno);
  if (::fsync(in.fd) == 0) return;
  const int error = errno;
  // EINVAL: this kind of file system cannot sync a directory.
  if (error != EINVAL || !std::filesystem::is_directory(path)) throw_io(path, "fsync", error);
}

void sync_parent_of(const Path& renamed) {
  try {
    sync_path(directory_of(renamed));
  } catch (const Error& e) {
    throw DurabilityUncertain(
        join(renamed.string(), ": written, but it may not survive a power failure: ", e.what()));
  }
}

uint64_t free_disk_bytes(const Path& path) {
  Path where = std::filesystem::absolute(path);
  struct statvfs info = {};
  while (::statvfs(where.c_str(), &info) != 0) {
    bool missing = errno == ENOENT && where.has_relative_path();
    if (!missing) throw_io(where, "examine the file system", errno);
    where = where.parent_path();
  }
  return uint64_t(info.f_bavail) * info.f_frsize;
}

}  // namespace brine::data
