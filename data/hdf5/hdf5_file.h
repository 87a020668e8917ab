// HDF5 files: a reader for untrusted files, and a writer of files that every program can read.
//
// A reader treats files as untrusted: soft, external and user-defined links, external storage,
// virtual datasets, variable-length types, unknown filters and sizes beyond the file are refused,
// and no plugin is ever loaded. Every error is one line that names the file and the object. All
// calls into the library are serialised by one mutex, so readers and writers may be used in any
// thread; a reader's const functions may be called from several at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace brine::data {

struct Hdf5Info {
  Shape shape;
  Dtype dtype = Dtype::f32;
  Shape chunk;                // rank 0 when the dataset is not chunked
  uint64_t stored_bytes = 0;  // in the file, after compression
};

// Objects are named by their path from the root, "inputs/q"; "/" is the root itself.
class Hdf5Reader : NonCopyable {
 public:
  explicit Hdf5Reader(const std::string& path);
  ~Hdf5Reader();

  const std::string& path() const;
  // Whether a group or dataset of that name exists; a link that is not a hard one throws.
  bool has(const std::string& object) const;
  // Full names of all datasets below a group, sorted.
  std::vector<std::string> datasets(const std::string& group = "/") const;

  // Shape and type; all checks of a dataset are made here.
  Hdf5Info info(const std::string& dataset) const;
  // The dataset in its stored type (f32, f64, f16, bf16, i32, i64 or u8; big endian is turned).
  Tensor read(const std::string& dataset) const;
  // Entries [first, first + count) of axis 0.
  Tensor read_rows(const std::string& dataset, int64_t first, int64_t count) const;
  // The same into `out`, which has exactly `bytes` bytes; the type must be `dtype`.
  void read_rows_into(const std::string& dataset, int64_t first, int64_t count, Dtype dtype,
                      void* out, size_t bytes) const;

  // Attributes of a group or dataset. Integers of any width fit an int64 or throw; strings have a
  // fixed length. A vector's attribute is one-dimensional or a scalar.
  std::vector<std::string> attributes(const std::string& object = "/") const;
  bool has_attribute(const std::string& object, const std::string& name) const;
  int64_t int_attribute(const std::string& object, const std::string& name) const;
  std::vector<int64_t> ints_attribute(const std::string& object, const std::string& name) const;
  double double_attribute(const std::string& object, const std::string& name) const;
  std::string string_attribute(const std::string& object, const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The storage of a dataset.
struct Hdf5Layout {
  Shape chunk = {};      // rank 0: contiguous, without a filter
  bool shuffle = false;  // groups bytes of equal significance, which helps deflate
  int deflate = 0;       // 0 = none, 1 fast .. 9 small
};

// A new file. The same calls give the same bytes: no time stamps are stored.
class Hdf5Writer : NonCopyable {
 public:
  explicit Hdf5Writer(const std::string& path);  // an existing file is an error
  ~Hdf5Writer();                                 // without close() the file may be incomplete

  // Missing parent groups are created.
  void group(const std::string& name);
  // bf16 becomes a 16-bit float type with bf16's fields, which h5py reads as float32.
  void create(const std::string& dataset, Dtype dtype, const Shape& shape,
              const Hdf5Layout& layout = {});
  // Entries [first, first + count) of axis 0 of a created dataset, `bytes` bytes in its type.
  void write_rows(const std::string& dataset, int64_t first, int64_t count, const void* values,
                  size_t bytes);
  // create() and write_rows() for a whole tensor, which may be strided.
  void write(const std::string& dataset, const Tensor& values, const Hdf5Layout& layout = {});

  void attribute(const std::string& object, const std::string& name, int64_t value);
  void attribute(const std::string& object, const std::string& name, double value);
  void attribute(const std::string& object, const std::string& name, std::string_view value);
  void attribute(const std::string& object, const std::string& name,
                 const std::vector<int64_t>& values);

  // Flushes and closes; an error here means that the file is not complete.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brine::data
