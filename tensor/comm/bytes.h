// Values of one machine type in a message, one after another: ranks run the same program.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor/base/error.h"

namespace brine {

class ByteWriter {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <class T>
  void list(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    number(uint64_t(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void text(const std::string& value) {
    number(uint64_t(value.size()));
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Throws when it is asked for more than there is. The bytes must outlive it.
class ByteReader {
 public:
  explicit ByteReader(const std::string& bytes) : bytes_(bytes) {}
  bool done() const { return at_ == bytes_.size(); }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> list() {
    const auto size = number<uint64_t>();
    check(size <= (bytes_.size() - at_) / sizeof(T), kShort);
    std::vector<T> values(size);
    const char* const from = take(size * sizeof(T));
    if (size > 0) std::memcpy(values.data(), from, size * sizeof(T));
    return values;
  }
  std::string text() {
    const auto size = number<uint64_t>();
    return {take(size), size};
  }

 private:
  static constexpr const char* kShort = "ranks: a message is shorter than its content";
  const char* take(size_t size) {
    check(size <= bytes_.size() - at_, kShort);
    at_ += size;
    return bytes_.data() + at_ - size;
  }
  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace brine
