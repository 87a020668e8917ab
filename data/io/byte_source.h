// Bytes pulled from a file through any number of layers of compression and archives.
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
  // Between 1 and `max_bytes` (>= 1) bytes; 0 only at the end. Throws an Error that starts with the
  // name of the file, and of the member if it is in an archive.
  virtual size_t read(char* out, size_t max_bytes) = 0;
  virtual const std::string& name() const = 0;
};

// Peeks at the first bytes of a source without consuming them.
class PeekSource : public ByteSource {
 public:
  explicit PeekSource(std::unique_ptr<ByteSource> inner) : inner_(std::move(inner)) {}
  // The next `count` bytes, fewer at the end.
  std::string_view peek(size_t count);
  size_t read(char* out, size_t max_bytes) override;
  const std::string& name() const override { return inner_->name(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  std::string held_;
};

std::unique_ptr<ByteSource> open_file_source(const Path& path);

// Opens `path` and calls visit for it or, in archives nested up to 4 deep, as OpenWebText's are,
// for every file inside. Layers are recognised by their first bytes (data/io/archive/layers.h).
// `bare` is the innermost name without .gz and .xz.
void for_each_file(const Path& path,
                   const std::function<void(ByteSource& content, const std::string& bare)>& visit);

}  // namespace brine::data
