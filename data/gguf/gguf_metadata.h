// The metadata of a GGUF file: values by key.
// Source: the public specification, docs/gguf.md of ggml.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/base/error.h"

namespace brine::data {

// Numbers as in the file.
enum class GgufValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};
const char* name_of(GgufValueType type);

struct GgufValue {
  GgufValueType type;     // of the value, or of the elements of an array
  bool is_array = false;  // arrays of arrays are refused by the reader
  uint64_t count = 1;
  std::string_view bytes;  // the values one after another; a string has its length (u64) in front
};

// The getters return nothing for an absent key. A value of another type, or an array instead of a
// single value, is an Error that names file and key. Every integer type counts as integer, integers
// also as numbers.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string file) : file_(std::move(file)) {}

  // Throws for a duplicate key.
  void add(std::string_view key, const GgufValue& value);
  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  const std::string& file() const { return file_; }

  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  std::optional<std::string> string(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key) const;
  // f32 as the double with its shortest decimal digits: 1e-5 is not 9.99999974e-06.
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  // Any single number, true as 1; nothing for an array or a string too.
  std::optional<double> single_number(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;  // empty for an absent key
  std::vector<int32_t> integers(std::string_view key) const;
  // What a getter gives; throws for an absent key, too.
  template <class T>
  T required(std::string_view key,
             std::optional<T> (GgufMetadata::*getter)(std::string_view) const) const {
    std::optional<T> value = (this->*getter)(key);
    check_format(value.has_value(), file_, ": has no key '", key, "'");
    return std::move(*value);
  }

  // The value as `brine inspect` prints it: long arrays as their length, long texts cut.
  std::string text(const GgufValue& value) const;

 private:
  const GgufValue* find(std::string_view key, bool array) const;
  [[noreturn]] void refuse(std::string_view key, const GgufValue& value, const char* wanted) const;
  int64_t integer_at(std::string_view key, const GgufValue& value, uint64_t index) const;
  double number_at(const GgufValue& value) const;
  // Calls f with every string of a value.
  template <class F>
  void each_string(const GgufValue& value, F f) const;

  std::string file_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

// Bytes of a value of a fixed size, 0 for strings and arrays.
uint64_t gguf_value_size(GgufValueType type);

}  // namespace brine::data
