// GGUF files, versions 2 and 3: a strict reader by mmap.
// Source: the public specification, docs/gguf.md of ggml.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/gguf/gguf_metadata.h"
#include "data/io/file_io.h"
#include "tensor/base/dtype.h"

namespace brine::data {

// The types of tensors in GGUF files (ggml's types): their numbers, names and blocks.
// Source: the public specification, docs/gguf.md of ggml.

// Values are stored in blocks of `values` neighbours of a row, `bytes` bytes each.
struct GgufType {
  uint32_t number;
  const char* name;
  uint32_t values, bytes;
  Dtype dtype;  // of the values that are read
  // `blocks` blocks as values; null if the bytes are the values.
  void (*dequantise)(const unsigned char* x, int64_t blocks, float* y);
};

// Null for a type that Brine does not read.
const GgufType* find_gguf_type(uint32_t number);

// n values of a row as f32; n is a multiple of type.values.
void read_gguf_row(const GgufType& type, const unsigned char* x, int64_t n, float* y);

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
