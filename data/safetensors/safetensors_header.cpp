// The safetensors header, read in one pass without a document tree, which would need several times
// the memory.
#include "data/safetensors/safetensors_header.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/json_keys.h"
#include "data/io/printable.h"

namespace brine::data {
namespace {

using nlohmann::json;

// Follows {"__metadata__": {string: string}, NAME: {"dtype": string, "shape": [...],
// "data_offsets": [begin, end]}}. A handler that returns false has set `error`, and parsing ends.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected("the number " + text);
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return unexpected("a number");
    numbers_.push_back(value);
    return true;
  }

  bool string(string_t& text) override {
    if (level_ == Level::metadata) {
      if (has_nul(text)) return fail("a NUL byte in the metadata of '" + shown(field_) + "'");
      header.metadata[field_] = text;
      return true;
    }
    if (level_ != Level::tensor || field_ != "dtype") return unexpected("a string");
    record().dtype = text;
    return true;
  }

  bool start_object(size_t) override {
    keys_.begin_object();
    if (level_ == Level::outside) return enter(Level::top);
    if (level_ != Level::top) return unexpected("an object");
    if (name_ == "__metadata__") return enter(Level::metadata);
    header.records.emplace_back().name = name_;
    return enter(Level::tensor);
  }

  bool key(string_t& text) override {
    if (has_nul(text)) return fail("a NUL byte in the name '" + json_text(json(text)) + "'");
    if (level_ == Level::top) {
      name_ = text;
      return keys_.add(text) || fail("'" + shown(text) + "' occurs twice");
    }
    field_ = text;
    bool known = text == "dtype" || text == "shape" || text == "data_offsets";
    if (level_ == Level::tensor && !known) return unexpected("the key '" + shown(text) + "'");
    return keys_.add(text) ||
           fail("key '" + shown(text) + "' of '" + shown(name_) + "' occurs twice");
  }

  bool end_object() override {
    if (level_ == Level::tensor && keys_.count() != 3)
      return fail("'" + shown(name_) + "' needs dtype, shape and data_offsets");
    keys_.end_object();
    return enter(level_ == Level::top ? Level::outside : Level::top);
  }

  bool start_array(size_t) override {
    if (level_ != Level::tensor || field_ == "dtype" || in_array_) return unexpected("an array");
    in_array_ = true;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    if (field_ == "shape") {
      record().shape = std::move(numbers_);
    } else {
      if (numbers_.size() != 2)
        return fail("data_offsets of '" + shown(name_) + "' must be two numbers");
      record().begin = numbers_[0];
      record().end = numbers_[1];
    }
    numbers_.clear();
    return true;
  }

  bool parse_error(size_t at, const std::string&, const json::exception& reason) override {
    return fail(join("bad JSON at byte ", at, ": ", reason.what()));
  }

 private:
  enum class Level { outside, top, metadata, tensor };

  bool fail(std::string reason) {
    error = std::move(reason);
    return false;
  }
  bool unexpected(const std::string& what) {
    std::string where = level_ == Level::outside ? "at the start"
                        : level_ == Level::top
                            ? "as the value of '" + shown(name_) + "'"
                            : "in '" + shown(name_) + "', key '" + shown(field_) + "'";
    return fail("unexpected " + what + " " + where);
  }
  bool enter(Level level) {
    level_ = level;
    return true;
  }
  static bool has_nul(const std::string& text) { return text.find('\0') != std::string::npos; }
  SafetensorsRecord& record() { return header.records.back(); }

  Level level_ = Level::outside;
  bool in_array_ = false;
  std::string name_, field_;
  std::vector<uint64_t> numbers_;
  JsonKeys keys_;
};

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

SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view text) {
  check_format(text.starts_with('{'), file, ": header does not begin with '{'");
  // The JSON lexer would treat a NUL byte as the end of the text.
  check_format(text.find('\0') == text.npos, file, ": NUL byte in the header");
  HeaderReader reader;
  bool ok = json::sax_parse(text.begin(), text.end(), &reader);
  check_format(ok, file, ": header: ", reader.error);
  return std::move(reader.header);
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
