// The safetensors header as JSON.
#include "data/safetensors/safetensors_header.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/utf8.h"

namespace brine::data {
namespace {

using nlohmann::json;

constexpr int kLevels = 4;  // one more than the format has

bool has_nul(const std::string& text) { return text.find('\0') != std::string::npos; }

[[noreturn]] void unexpected(const std::string& where, const json& value,
                             const std::string& context) {
  const char* what = value.is_number_float()      ? "the number "
                     : value.is_number_unsigned() ? "a number"
                     : value.is_number()          ? "a negative number"
                     : value.is_string()          ? "a string"
                     : value.is_object()          ? "an object"
                     : value.is_array()           ? "an array"
                     : value.is_boolean()         ? "a boolean"
                                                  : "null";
  throw Error(join(where, ": unexpected ", what, value.is_number_float() ? json_text(value) : "",
                   " ", context),
              ErrorKind::format);
}

std::vector<uint64_t> numbers_of(const json& list, const std::string& where,
                                 const std::string& context) {
  if (!list.is_array()) unexpected(where, list, context);
  for (const json& item : list)
    if (!item.is_number_unsigned()) unexpected(where, item, context);
  return list.get<std::vector<uint64_t>>();
}

// {"dtype": string, "shape": [...], "data_offsets": [begin, end]}
SafetensorsRecord record_of(const std::string& name, const json& object, const std::string& where) {
  const std::string quoted = "'" + shown(name) + "'";
  if (!object.is_object()) unexpected(where, object, "as the value of " + quoted);
  SafetensorsRecord record;
  record.name = name;
  for (const auto& [key, value] : object.items()) {
    const std::string context = join("in ", quoted, ", key '", shown(key), "'");
    if (key == "dtype") {
      if (!value.is_string()) unexpected(where, value, context);
      record.dtype = value.get<std::string>();
    } else if (key == "shape") {
      record.shape = numbers_of(value, where, context);
    } else {
      check_format(key == "data_offsets", where, ": unexpected the key '", shown(key), "' in ",
                   quoted);
      const std::vector<uint64_t> ends = numbers_of(value, where, context);
      check_format(ends.size() == 2, where, ": data_offsets of ", quoted, " must be two numbers");
      record.begin = ends[0];
      record.end = ends[1];
    }
  }
  check_format(object.size() == 3, where, ": ", quoted, " needs dtype, shape and data_offsets");
  return record;
}

void read_metadata(const json& object, const std::string& where,
                   std::map<std::string, std::string>& metadata) {
  if (!object.is_object()) unexpected(where, object, "as the value of '__metadata__'");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) unexpected(where, value, "in '__metadata__', key '" + shown(key) + "'");
    const auto text = value.get<std::string>();
    check_format(!has_nul(key) && !has_nul(text), where, ": a NUL byte in the metadata of '",
                 shown(key), "'");
    metadata[key] = text;
  }
}

}  // namespace

const std::vector<SafetensorsType>& safetensors_types() {
  static const std::vector<SafetensorsType> types = {
      {"BOOL", 8, Dtype::u8},  {"F4", 4, {}},           {"F6_E2M3", 6, {}},
      {"F6_E3M2", 6, {}},      {"U8", 8, Dtype::u8},    {"I8", 8, {}},
      {"F8_E5M2", 8, {}},      {"F8_E4M3", 8, {}},      {"F8_E8M0", 8, {}},
      {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},  {"I16", 16, {}},
      {"U16", 16, {}},         {"F16", 16, Dtype::f16}, {"BF16", 16, Dtype::bf16},
      {"I32", 32, Dtype::i32}, {"U32", 32, {}},         {"F32", 32, Dtype::f32},
      {"C64", 64, {}},         {"F64", 64, Dtype::f64}, {"I64", 64, Dtype::i64},
      {"U64", 64, {}},
  };
  return types;
}

const SafetensorsType* find_safetensors_type(std::string_view name) {
  for (const SafetensorsType& type : safetensors_types()) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

const SafetensorsType& safetensors_type(Dtype dtype) {
  const SafetensorsType* found = nullptr;  // the last one: u8 is U8, not BOOL
  for (const SafetensorsType& type : safetensors_types()) {
    if (type.dtype == dtype) found = &type;
  }
  check(found != nullptr, "safetensors: has no type for ", dtype);
  return *found;
}

Dtype safetensors_dtype(const std::string& file, const std::string& name, std::string_view dtype) {
  const SafetensorsType* type = find_safetensors_type(dtype);
  check_format(type->dtype.has_value(), file, ": tensor '", shown(name), "' has dtype ", dtype,
               ", which Brine cannot use");
  return *type->dtype;
}

SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view text) {
  check_format(text.starts_with('{'), file, ": header does not begin with '{'");
  // The JSON lexer would treat a NUL byte as the end of the text.
  check_format(text.find('\0') == text.npos, file, ": NUL byte in the header");
  const std::string where = file + ": header";
  json root;
  try {
    root = parse_json(text, where, kLevels);
  } catch (const json::exception& e) {
    throw Error(join(where, ": bad JSON: ", e.what()), ErrorKind::format);
  }
  SafetensorsHeader header;
  for (const auto& [name, object] : root.items()) {
    check_format(!has_nul(name), where, ": a NUL byte in the name '", json_text(json(name)), "'");
    if (name == "__metadata__")
      read_metadata(object, where, header.metadata);
    else
      header.records.push_back(record_of(name, object, where));
  }
  return header;
}

std::string format_safetensors_header(const std::string& file, const SafetensorsHeader& header) {
  std::string text = "{";
  auto quoted = [&](const std::string& s) {
    try {
      std::string spelled = json_text(json(s));
      check_format(s.find('\0') == s.npos, file, ": NUL byte in the name or value ", spelled);
      return spelled;
    } catch (const json::exception&) {
      throw Error(file + ": a name or value is not UTF-8");
    }
  };
  if (!header.metadata.empty()) text += "\"__metadata__\":{";
  for (const auto& [key, value] : header.metadata) text += quoted(key) + ":" + quoted(value) + ",";
  if (!header.metadata.empty()) text.back() = '}';
  for (const SafetensorsRecord& record : header.records) {
    if (text.size() > 1) text += ",";
    text += quoted(record.name) + ":{\"dtype\":\"" + record.dtype +
            "\",\"shape\":" + json_text(json(record.shape)) + ",\"data_offsets\":[" +
            std::to_string(record.begin) + "," + std::to_string(record.end) + "]}";
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check_format(text.size() <= kMaxSafetensorsHeader, file, ": header of ", text.size(),
               " bytes, at most ", kMaxSafetensorsHeader, " are allowed");
  return text;
}

}  // namespace brine::data
