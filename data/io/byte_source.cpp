// Byte sources: files, and gzip around them.
#include "data/io/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tensor/base/error.h"

namespace brine::data {
namespace {

class FileSource : public ByteSource {
 public:
  explicit FileSource(const Path& path) : name_(path.string()) {
    refuse_lfs_pointer(path);
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw_io(path, "open", errno);
    struct stat info = {};
    const bool fits = ::fstat(fd_, &info) == 0 && (S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode));
    if (!fits) ::close(fd_);
    check(fits, name_, ": is neither a file nor a pipe");
  }
  ~FileSource() override { ::close(fd_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  size_t read(char* out, size_t max_bytes) override {
    while (true) {
      const ssize_t n = ::read(fd_, out, max_bytes);
      if (n >= 0) return size_t(n);
      if (errno != EINTR) throw_io(name_, "read", errno);
    }
  }
  const std::string& name() const override { return name_; }

 private:
  std::string name_;
  int fd_ = -1;
};

}  // namespace

std::string_view PeekSource::peek(size_t count) {
  while (held_.size() < count) {
    char part[4096];
    const size_t n = inner_->read(part, std::min(sizeof part, count - held_.size()));
    if (n == 0) break;
    held_.append(part, n);
  }
  return std::string_view(held_).substr(0, count);
}

size_t PeekSource::read(char* out, size_t max_bytes) {
  if (held_.empty()) return inner_->read(out, max_bytes);
  const size_t n = std::min(max_bytes, held_.size());
  std::memcpy(out, held_.data(), n);
  held_.erase(0, n);
  return n;
}

std::unique_ptr<ByteSource> open_unpacked(const Path& path) {
  auto source = std::make_unique<PeekSource>(std::make_unique<FileSource>(path));
  if (source->peek(2) == "\x1f\x8b")
    source = std::make_unique<PeekSource>(gunzip(std::move(source)));
  refuse_packed(path, source->peek(kPackedHead));
  return source;
}

}  // namespace brine::data
