// Files as byte sources. gzip by zlib, which compares a stream's checksum and its length.
#include "data/io/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr size_t kInflated = 64 << 10;

class UnpackedFile : public ByteSource, NonCopyable {
 public:
  explicit UnpackedFile(const Path& path) : name_(path.string()) {
    refuse_lfs_pointer(path);
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw_io(path, "open", errno);
    struct stat info = {};
    const bool fits = ::fstat(fd_, &info) == 0 && (S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode));
    if (!fits) ::close(fd_);
    check(fits, name_, ": is neither a file nor a pipe");
  }
  ~UnpackedFile() override {
    if (packed_) inflateEnd(&stream_);
    ::close(fd_);
  }

  // Once, before the first read(). Not in the constructor: the destructor closes the file if this
  // throws.
  void begin(const Path& path) {
    if (peek(2) == "\x1f\x8b") {
      check(inflateInit2(&stream_, 15 + 16) == Z_OK, name_, ": zlib cannot be started");
      packed_ = true;
      piece_.assign(held_.begin(), held_.end());
      held_.clear();
      stream_.next_in = reinterpret_cast<Bytef*>(piece_.data());
      stream_.avail_in = uInt(piece_.size());
    }
    refuse_packed(path, peek(kPackedHead));
  }

  size_t read(char* out, size_t max_bytes) override {
    if (held_.empty()) return next(out, max_bytes);
    const size_t n = std::min(max_bytes, held_.size());
    std::memcpy(out, held_.data(), n);
    held_.erase(0, n);
    return n;
  }
  const std::string& name() const override { return name_; }

 private:
  // The next `count` bytes, which read() still returns; fewer at the end.
  std::string_view peek(size_t count) {
    while (held_.size() < count) {
      char part[4096];
      const size_t n = next(part, std::min(sizeof part, count - held_.size()));
      if (n == 0) break;
      held_.append(part, n);
    }
    return std::string_view(held_).substr(0, count);
  }

  // As read(), after the held bytes.
  size_t next(char* out, size_t max_bytes) {
    return packed_ ? inflated(out, max_bytes) : file(out, max_bytes);
  }

  size_t file(char* out, size_t max_bytes) {
    while (true) {
      const ssize_t n = ::read(fd_, out, max_bytes);
      if (n >= 0) return size_t(n);
      if (errno != EINTR) throw_io(name_, "read", errno);
    }
  }

  size_t inflated(char* out, size_t max_bytes) {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = uInt(std::min<size_t>(max_bytes, 1 << 30));
    const uInt wanted = stream_.avail_out;
    while (!ended_ && stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) {
        piece_.resize(kInflated);
        stream_.avail_in = uInt(file(piece_.data(), piece_.size()));
        stream_.next_in = reinterpret_cast<Bytef*>(piece_.data());
        if (stream_.avail_in == 0) {
          check_format(between_, name_, ": the gzip data end too early");
          ended_ = true;
          break;
        }
      }
      if (between_) {  // another member may follow
        check(inflateReset(&stream_) == Z_OK, name_, ": zlib cannot continue");
        between_ = false;
      }
      const int status = inflate(&stream_, Z_NO_FLUSH);
      check_format(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR, name_,
                   ": damaged gzip data", stream_.msg ? join(" (", stream_.msg, ")") : "");
      between_ = status == Z_STREAM_END;
    }
    return wanted - stream_.avail_out;
  }

  std::string name_;
  int fd_ = -1;
  std::string held_;  // bytes that were peeked at and not read yet
  bool packed_ = false;
  std::vector<char> piece_;  // compressed bytes that were read but not used yet
  bool ended_ = false;
  z_stream stream_{};
  bool between_ = false;  // the last member is complete
};

}  // namespace

std::unique_ptr<ByteSource> open_unpacked(const Path& path) {
  auto source = std::make_unique<UnpackedFile>(path);
  source->begin(path);
  return source;
}

}  // namespace brine::data
