// Byte sources: files, and the removal of layer after layer of compression and archives.
#include "data/io/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "data/io/archive/layers.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr int kMostLayers = 4;  // layers, those of OpenWebText

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

using Visit = std::function<void(ByteSource&, const std::string&)>;

std::string without(std::string name, const std::string& ending) {
  if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  return name;
}

void unwrap(std::unique_ptr<ByteSource> source, const std::string& bare, int depth,
            const Visit& visit) {
  auto peek = std::make_unique<PeekSource>(std::move(source));
  const Layer layer = layer_of(peek->peek(kLayerHead));
  check_format(depth < kMostLayers || layer == Layer::kNone, peek->name(), ": has more than ",
               kMostLayers, " layers of archives and compression");
  switch (layer) {
    case Layer::kNone:
      check_format(!is_other_archive(peek->peek(kLayerHead)), peek->name(),
                   ": a zip, 7z or zstd file, which is not read; unpack it first");
      return visit(*peek, bare);
    case Layer::kGzip:
      return unwrap(gunzip(std::move(peek)), without(bare, ".gz"), depth + 1, visit);
    case Layer::kXz:
      return unwrap(unxz(std::move(peek)), without(bare, ".xz"), depth + 1, visit);
    case Layer::kTar:
      for_each_member(*peek, [&](std::unique_ptr<ByteSource> member) {
        const std::string name = member->name();
        unwrap(std::move(member), name, depth + 1, visit);
      });
      // The rest after the archive is read too: only then is it known to be complete.
      char rest[4096];
      while (peek->read(rest, sizeof rest) > 0) continue;
  }
}

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

std::unique_ptr<ByteSource> open_file_source(const Path& path) {
  return std::make_unique<FileSource>(path);
}

void for_each_file(const Path& path, const Visit& visit) {
  unwrap(open_file_source(path), path.string(), 0, visit);
}

}  // namespace brine::data
