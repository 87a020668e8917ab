// Bytes pulled from a file through any number of layers: gzip, xz, tar.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "data/io/file_io.h"

namespace brine::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Between 1 and `most` (>= 1) bytes; 0 at the end and not before. Throws Error that begins with
  // the name of the file, and of the member when it is one of an archive.
  virtual size_t read(char* out, size_t most) = 0;
  virtual const std::string& name() const = 0;
};

// Looks at the first bytes of a source without taking them.
class PeekSource : public ByteSource {
 public:
  explicit PeekSource(std::unique_ptr<ByteSource> inner) : inner_(std::move(inner)) {}
  // The next `count` bytes, fewer at the end.
  std::string_view peek(size_t count);
  size_t read(char* out, size_t most) override;
  const std::string& name() const override { return inner_->name(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  std::string held_;
};

std::unique_ptr<ByteSource> open_file_source(const Path& path);
// Both take one or more compressed streams in a row; damage and a missing end are errors.
std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> inner);
std::unique_ptr<ByteSource> unxz(std::unique_ptr<ByteSource> inner);
// Whether the first 512 bytes of a file are a tar header: by its magic, or its checksum.
bool is_tar(std::string_view head);
// Calls visit for every regular file of a tar archive (v7, ustar, GNU, pax), in order. The source
// it is given is named "ARCHIVE: MEMBER" and lives until visit returns; what is left of it is
// skipped, as are directories, links and devices. Sparse files, parts of other volumes and members
// of unknown type are errors.
void for_each_tar_member(ByteSource& archive,
                         const std::function<void(std::unique_ptr<ByteSource>)>& visit);

// Opens `path` and calls visit for it or, in archives of any depth, for every file inside. Layers
// are recognised by their first bytes: xz, gzip, tar. `bare` is the innermost name without .gz and
// .xz.
void for_each_file(const Path& path,
                   const std::function<void(ByteSource& content, const std::string& bare)>& visit);

}  // namespace brine::data
