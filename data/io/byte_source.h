// Bytes pulled from a file, plain or in gzip.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

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

// The content of a file, out of gzip where it begins like it: one or more consecutive gzip streams,
// whose damage and missing end are errors. Throws at what refuse_packed() refuses, inside of gzip,
// too.
std::unique_ptr<ByteSource> open_unpacked(const Path& path);

}  // namespace brine::data
