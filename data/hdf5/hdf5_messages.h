// Messages of HDF5 object headers: whether the sizes in them fit the bytes that they have.
// Included by data/hdf5/*.cpp only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "tensor/base/error.h"

namespace brine::data::hdf5 {

inline constexpr int kDeepestHdf5 = 16;  // nested datatypes, chained headers

[[noreturn]] inline void refuse_header(const std::string& where, const char* what) {
  throw Error(where + ": damaged object header: " + what, ErrorKind::format);
}

// Bytes that are consumed from the front; reading beyond the end throws.
class Cursor {
 public:
  Cursor(const std::string& where, std::span<const char> bytes) : where_(where), bytes_(bytes) {}

  size_t left() const { return bytes_.size(); }
  std::span<const char> take(uint64_t count, const char* what) {
    if (count > bytes_.size()) refuse_header(where_, what);
    const auto front = bytes_.first(size_t(count));
    bytes_ = bytes_.subspan(size_t(count));
    return front;
  }
  void skip(uint64_t count, const char* what) { take(count, what); }
  // Little endian.
  uint64_t number(int bytes, const char* what) {
    uint64_t value = 0;
    const auto from = take(uint64_t(bytes), what);
    for (int i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(from[size_t(i)]);
    return value;
  }
  // A text that ends with a NUL, padded to a multiple of `unit` bytes.
  void text(size_t unit, const char* what) {
    const auto nul = std::find(bytes_.begin(), bytes_.end(), '\0');
    if (nul == bytes_.end()) refuse_header(where_, what);
    const size_t size = size_t(nul - bytes_.begin()) + 1;
    skip((size + unit - 1) / unit * unit, what);
  }
  const std::string& where() const { return where_; }

 private:
  const std::string& where_;
  std::span<const char> bytes_;
};

// Each reads a message's content and throws if it ends too early.
uint64_t check_datatype(Cursor& m, int depth = 0);      // returns the size of an element
uint64_t check_dataspace(Cursor& m, int length_bytes);  // returns the number of elements
void check_fill_value(Cursor& m, bool old);
void check_filters(Cursor& m);

inline uint64_t padded(uint64_t size, bool to_eight) {
  return to_eight ? (size + 7) / 8 * 8 : size;
}

inline uint64_t product(const std::string& where, uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) refuse_header(where, "an impossible number of elements");
  return out;
}

}  // namespace brine::data::hdf5
