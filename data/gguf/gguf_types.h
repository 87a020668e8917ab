// The types of tensors in GGUF files (ggml's types): their numbers, names and blocks.
// Source: the public specification, docs/gguf.md of ggml.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/base/dtype.h"

namespace brine::data {

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
// Its name, also if Brine does not read it; "type 77" if it is unknown.
std::string gguf_type_name(uint32_t number);
// The names of the types that Brine reads.
std::string known_gguf_types();

// n values of a row as f32; n is a multiple of type.values.
void read_gguf_row(const GgufType& type, const unsigned char* x, int64_t n, float* y);

}  // namespace brine::data
