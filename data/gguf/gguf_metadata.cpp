// Values of GGUF's metadata, decoded when they are asked for.
#include "data/gguf/gguf_metadata.h"

#include <charconv>
#include <utility>

#include "data/io/file_io.h"
#include "data/io/utf8.h"

namespace brine::data {
namespace {

using ValueType = GgufValueType;

template <class T>
T value_at(const GgufValue& value, uint64_t index) {
  return number_from<T>(value.bytes.data() + index * sizeof(T));
}

// Calls f with the integer at `index`; false if the values are not integers.
template <class F>
bool with_integer(const GgufValue& v, uint64_t index, F f) {
  switch (v.type) {
    case ValueType::u8:
      return f(value_at<uint8_t>(v, index)), true;
    case ValueType::i8:
      return f(value_at<int8_t>(v, index)), true;
    case ValueType::u16:
      return f(value_at<uint16_t>(v, index)), true;
    case ValueType::i16:
      return f(value_at<int16_t>(v, index)), true;
    case ValueType::u32:
      return f(value_at<uint32_t>(v, index)), true;
    case ValueType::i32:
      return f(value_at<int32_t>(v, index)), true;
    case ValueType::u64:
      return f(value_at<uint64_t>(v, index)), true;
    case ValueType::i64:
      return f(value_at<int64_t>(v, index)), true;
    default:
      return false;
  }
}

// The double that the shortest decimal digits of x denote.
double shortest(float x) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, x).ptr;
  double out = double(x);
  std::from_chars(digits, end, out);  // fails for infinities and NaN only
  return out;
}

std::string cut(std::string_view text, size_t max_size) {
  return text.size() <= max_size ? shown(text) : shown(text.substr(0, max_size)) + "...";
}

}  // namespace

const char* name_of(GgufValueType type) {
  constexpr const char* names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                   "bool", "string", "array", "u64", "i64", "f64"};
  return names[size_t(type)];
}

uint64_t gguf_value_size(GgufValueType type) {
  constexpr uint64_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[size_t(type)];
}

void GgufMetadata::add(std::string_view key, const GgufValue& value) {
  const bool fresh = values_.emplace(key, value).second;
  check_format(fresh, file_, ": the key '", shown(key), "' occurs twice");
}

void GgufMetadata::refuse(std::string_view key, const GgufValue& value, const char* wanted) const {
  throw Error(join(file_, ": the key '", shown(key), "' is ", value.is_array ? "an array of " : "",
                   name_of(value.type), ", wanted ", wanted),
              ErrorKind::format);
}

const GgufValue* GgufMetadata::find(std::string_view key, bool array) const {
  auto at = values_.find(key);
  if (at == values_.end()) return nullptr;
  if (at->second.is_array != array) refuse(key, at->second, array ? "an array" : "a single value");
  return &at->second;
}

template <class F>
void GgufMetadata::each_string(const GgufValue& value, F f) const {
  std::string_view left = value.bytes;
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto size = number_from<uint64_t>(left.data());
    f(left.substr(8, size));
    left.remove_prefix(8 + size);
  }
}

int64_t GgufMetadata::integer_at(std::string_view key, const GgufValue& value,
                                 uint64_t index) const {
  int64_t out = 0;
  bool fits = true;
  const bool is_integer = with_integer(value, index, [&](auto x) {
    fits = std::in_range<int64_t>(x);
    out = int64_t(+x);
  });
  if (!is_integer) refuse(key, value, "an integer");
  check_format(fits, file_, ": the key '", shown(key), "' is above ", INT64_MAX);
  return out;
}

double GgufMetadata::number_at(const GgufValue& value) const {
  return value.type == ValueType::f32 ? shortest(value_at<float>(value, 0))
                                      : value_at<double>(value, 0);
}

std::optional<std::string> GgufMetadata::string(std::string_view key) const {
  const GgufValue* value = find(key, false);
  if (!value) return std::nullopt;
  if (value->type != ValueType::string) refuse(key, *value, "a string");
  return std::string(value->bytes.substr(8));
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* value = find(key, false);
  return value ? std::optional(integer_at(key, *value, 0)) : std::nullopt;
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = find(key, false);
  if (!value) return std::nullopt;
  if (value->type == ValueType::f32 || value->type == ValueType::f64) return number_at(*value);
  if (value->type == ValueType::boolean || value->type == ValueType::string)
    refuse(key, *value, "a number");
  return double(integer_at(key, *value, 0));
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* value = find(key, false);
  if (!value) return std::nullopt;
  if (value->type != ValueType::boolean) refuse(key, *value, "a bool");
  return value->bytes[0] != 0;
}

std::optional<double> GgufMetadata::single_number(std::string_view key) const {
  auto at = values_.find(key);
  if (at == values_.end() || at->second.is_array || at->second.type == ValueType::string)
    return std::nullopt;
  return at->second.type == ValueType::boolean ? double(*boolean(key)) : *number(key);
}

std::vector<std::string> GgufMetadata::strings(std::string_view key) const {
  std::vector<std::string> out;
  const GgufValue* value = find(key, true);
  if (!value) return out;
  if (value->type != ValueType::string) refuse(key, *value, "an array of strings");
  out.reserve(value->count);
  each_string(*value, [&](std::string_view text) { out.emplace_back(text); });
  return out;
}

std::vector<int32_t> GgufMetadata::integers(std::string_view key) const {
  std::vector<int32_t> out;
  const GgufValue* value = find(key, true);
  if (!value) return out;
  out.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const int64_t x = integer_at(key, *value, i);
    check_format(std::in_range<int32_t>(x), file_, ": the key '", shown(key), "' contains ", x,
                 ", which needs more than 32 bits");
    out.push_back(int32_t(x));
  }
  return out;
}

std::string GgufMetadata::text(const GgufValue& value) const {
  constexpr uint64_t kMax = 8;
  if (value.is_array && value.count > kMax)
    return join(value.count, " values of type ", name_of(value.type));
  std::string out = value.is_array ? "[" : "";
  auto put = [&](const std::string& word) {
    out += (out.size() > 1 && value.is_array ? ", " : "") + word;
  };
  if (value.type == ValueType::string) {
    each_string(value, [&](std::string_view text) { put(cut(text, 72)); });
  } else {
    for (uint64_t i = 0; i < value.count; ++i) {
      if (with_integer(value, i, [&](auto x) { put(std::to_string(x)); })) continue;
      if (value.type == ValueType::boolean) put(value.bytes[i] ? "true" : "false");
      if (value.type == ValueType::f32) put(join(value_at<float>(value, i)));
      if (value.type == ValueType::f64) put(join(value_at<double>(value, i)));
    }
  }
  return value.is_array ? out + "]" : out;
}

}  // namespace brine::data
