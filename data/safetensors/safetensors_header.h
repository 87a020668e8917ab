// The JSON header of a safetensors file, as text; used by the reader and the writer only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/base/dtype.h"

namespace brine::data {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// An element type of the format: its name, its width, and Brine's type if there is one.
struct SafetensorsType {
  const char* name;
  unsigned bits;
  std::optional<Dtype> dtype;
};

// All types in the format's order, by which files are sorted.
const std::vector<SafetensorsType>& safetensors_types();
const SafetensorsType* find_safetensors_type(std::string_view name);
const SafetensorsType& safetensors_type(Dtype dtype);
// Brine's type of a known name; an Error about the tensor `name` of a file if it has none.
Dtype safetensors_dtype(const std::string& file, const std::string& name, std::string_view dtype);

struct SafetensorsRecord {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsRecord> records;
};

// Checks the grammar only: types of values, duplicate and missing keys, NUL, UTF-8. Throws Error
// that starts with `file`.
SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view text);

// Compact JSON, records in the order given, padded with spaces to a multiple of eight.
std::string format_safetensors_header(const std::string& file, const SafetensorsHeader& header);

}  // namespace brine::data
