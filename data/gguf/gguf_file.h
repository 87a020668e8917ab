// GGUF files, versions 2 and 3: a strict reader by mmap.
// Source: the public specification, docs/gguf.md of ggml.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/gguf/gguf_metadata.h"
#include "data/gguf/gguf_types.h"
#include "data/io/file_io.h"

namespace brine::data {

// Whether a regular file begins like a GGUF file; false if it cannot be read.
bool is_gguf(const Path& path);

struct GgufTensor {
  std::string name;
  const GgufType* type;
  std::vector<uint64_t> shape;  // the last axis is that of rows; 1 to 4 axes, none empty
  uint64_t begin, size;         // bytes, from the start of the file
};

// The parsed header of a mapped file. Throws an Error that names the file and the reason: another
// version or byte order, truncation, duplicate keys or names, nested arrays, types that Brine does
// not read, tensors that overlap, are not aligned, leave holes or end outside the file. Nothing is
// allocated by a count that the file's size does not allow.
struct GgufHeader {
  explicit GgufHeader(const Path& path, const MappedFile& file);

  uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // in the order of the header
};

}  // namespace brine::data
