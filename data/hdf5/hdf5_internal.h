// Shared use of the HDF5 C library by reader and writer: the lock, handles, types and errors.
// Included by data/hdf5/*.cpp only.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tensor/base/dtype.h"
#include "tensor/base/shape.h"

// Whether libhdf5 itself is trusted with sizes that a file names. Releases before 2.0 are not: then
// object headers are checked before the library decodes them (hdf5_headers.h) and chunks are read
// and unpacked without it (hdf5_storage.cpp, hdf5_filters.cpp). Once only 2.0 and later are
// supported, the code inside `#if !BRINE_TRUST_HDF5` can be removed.
#ifndef BRINE_TRUST_HDF5
#define BRINE_TRUST_HDF5 H5_VERSION_GE(2, 0, 0)
#endif

namespace brine::data::hdf5 {

// Locked around every call into the library. The first one initialises it (plugins off, no work at
// exit) and disables its printing in this thread.
class Lock {
 public:
  Lock();

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

// Owns an identifier. It must be destroyed while a Lock exists.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(other.id_), close_(other.close_) { other.id_ = -1; }
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() { reset(); }

  hid_t id() const { return id_; }
  bool ok() const { return id_ >= 0; }
  // False when the library reports an error.
  bool reset() {
    bool closed = id_ < 0 || close_(id_) >= 0;
    id_ = -1;
    return closed;
  }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// Throws Error("WHERE: DOING: the library's first message").
[[noreturn]] void fail(const std::string& where, const std::string& doing);
inline void must(bool ok, const std::string& where, const char* doing) {
  if (!ok) fail(where, doing);
}

// A type of Brine and its byte order in a file.
struct StoredType {
  Dtype dtype = Dtype::f32;
  bool swapped = false;  // not this machine's order
  hid_t id = -1;         // belongs to the table, never closed
};
// Brine's type that equals `type` bit for bit, or nothing.
std::optional<StoredType> find_type(hid_t type);
// The type to write: this machine's order.
hid_t file_type(Dtype dtype);

// Swaps the bytes of `count` items of `size` bytes.
void swap_bytes(void* items, size_t count, size_t size);

// The parts of "a/b/c"; empty for "/". Parts that are empty, "." or ".." throw.
std::vector<std::string> split_path(const std::string& where, const std::string& object);

std::vector<hsize_t> to_hsize(const Shape& shape);

// The shape of rows [first, first + count) of a dataset, that of the whole one without axes. Throws
// unless it has these rows.
Shape shape_of_rows(const std::string& where, Shape shape, int64_t first, int64_t count);

}  // namespace brine::data::hdf5
