// Bytes pulled from a file, plain or in gzip.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "data/io/file_io.h"

namespace brine::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Between 1 and `max_bytes` (>= 1) bytes; 0 only at the end. Throws an Error that starts with the
  // name of the file.
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

// Accepts one or more consecutive gzip streams; damage and a missing end are errors.
std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> inner);

// The content of a file, out of gzip where it begins like it. Throws at what refuse_packed()
// refuses, inside of gzip, too.
std::unique_ptr<ByteSource> open_unpacked(const Path& path);

}  // namespace brine::data
