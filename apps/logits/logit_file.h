// The file that `brine logits` writes, a row of logits after the other.
#pragma once

#include <memory>
#include <string>

#include "data/io/file_io.h"
#include "tensor/tensor.h"

namespace brine {

// Throws when no file of logits can have this path: it does not end in .safetensors, or is a
// directory, or its directory does not exist.
void check_logit_path(const std::string& path);

// A new file, which replaces an earlier one at commit() and leaves no remains without it.
class LogitFile {
 public:
  // `shape` is that of the logits, whose last axis is a row; `tokens` are ids, i32. Throws the
  // errors of check_logit_path(), and when the disk has less room than the file needs.
  LogitFile(const std::string& path, const Shape& shape, const Tensor& tokens);

  // The next rows, f32 [R, V] of any device and strides.
  void write(const Tensor& rows);
  // Throws when rows are missing, and as AtomicFile::commit().
  void commit();

 private:
  Shape shape_;
  Tensor tokens_;
  int64_t missing_;  // numbers
  std::unique_ptr<data::AtomicFile> file_;
};

}  // namespace brine
