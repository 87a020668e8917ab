// Values and schemas as text: messages, TOML, Markdown and JSON.
#include "data/config/schema_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/utf8.h"
#include "tensor/base/error.h"

namespace brine::data {

namespace {

template <class T>
std::string digits(T value) {
  char buffer[32];
  auto [end, problem] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, end);
}

// The value that a target has now, if it has one.
std::optional<std::string> current(const Schema::EnumSlot& slot) { return slot.read(); }
template <class T>
std::optional<T> current(const std::optional<T>* member) {
  return *member;
}
template <class T>
std::optional<T> current(const T* member) {
  return *member;
}

// As JSON, which has no word for numbers that are not finite.
std::string with_nan(const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return toml_value(value.get<double>());
  if (!value.is_array()) return printable_json(value);
  std::string out;
  for (const Json& item : value) out += (out.empty() ? "" : ",") + with_nan(item);
  return "[" + out + "]";
}

std::string markdown_cell(const std::string& text) { return replaced(text, "|", "\\|"); }

}  // namespace

std::string show(const Json& value) {
  std::string text = with_nan(value);
  if (text.size() <= 60) return text;
  size_t cut = 56;
  while (cut > 0 && (text[cut] & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

std::string list_of(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += "\"" + words[i] + "\"";
  }
  return out;
}

std::string toml_value(bool value) { return value ? "true" : "false"; }
std::string toml_value(int64_t value) { return digits(value); }

std::string toml_value(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = digits(value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string toml_value(const std::string& value) {
  std::string out = "\"";
  for (char c : value) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      const char* hex = "0123456789ABCDEF";
      out += std::string("\\u00") + hex[byte >> 4] + hex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Schema::Kind Schema::Field::kind() const {
  constexpr size_t kLists = 7;  // each alternative before the optional ones is a kind
  if (std::holds_alternative<EnumSlot>(target)) return Kind::text;
  return Kind(target.index() < kLists ? target.index() : target.index() - kLists);
}

std::string Schema::Field::section() const {
  const size_t end = key.rfind('.');
  return end == std::string::npos ? "" : key.substr(0, end);
}

bool Schema::Field::empty() const {
  return std::visit([](const auto& value) { return !current(value).has_value(); }, target);
}

std::string Schema::Field::toml() const {
  return empty() ? "" : std::visit([](const auto& v) { return toml_value(*current(v)); }, target);
}

std::string Schema::Field::type() const {
  const char* names[] = {"true or false",    "integer",         "number",       "text",
                         "list of integers", "list of numbers", "list of texts"};
  return names[size_t(kind())];
}

std::string Schema::Field::allowed() const {
  std::string out;
  for (const std::string& choice : choices) out += (out.empty() ? "" : ", ") + choice;
  auto bound = [&](const char* sign, double limit) {
    if (std::isfinite(limit)) out += join(out.empty() ? "" : ", ", sign, limit);
  };
  bound(">= ", options.min);
  bound("> ", options.above);
  bound("<= ", options.max);
  bound("< ", options.below);
  return out;
}

std::string Schema::unknown_key(std::string_view key) const {
  std::vector<std::string> known;
  for (const Field& field : fields_) {
    if (!field.active()) {
      if (field.key != key) continue;
      return join("\"", key, "\" is a key of ", field.selector, " = \"", field.when,
                  "\", but it is \"", *field.chosen, "\"");
    }
    known.push_back(field.key);
    if (!field.options.alias.empty()) known.push_back(field.options.alias);
  }
  if (has_section(key)) return join("\"", key, "\" is a section, not a value");
  const std::string best = nearest(key, known);
  return join("unknown key \"", key, "\"",
              best.empty() ? "" : "; the nearest known key is \"" + best + "\"");
}

Json Schema::to_json() const {
  Json root = Json::object();
  for (const Field& field : fields_) {
    if (!field.active() || field.options.transient || field.empty()) continue;
    Json* object = &root;
    size_t begin = 0;
    for (size_t dot; (dot = field.key.find('.', begin)) != std::string::npos; begin = dot + 1) {
      object = &(*object)[field.key.substr(begin, dot - begin)];
    }
    (*object)[field.key.substr(begin)] =
        std::visit([](const auto& value) { return Json(*current(value)); }, field.target);
  }
  return root;
}

std::string Schema::to_toml() const {
  std::vector<std::string> sections = {""};  // the keys without a section come first
  for (const Field& field : fields_) {
    const std::string section = field.section();
    bool known = std::find(sections.begin(), sections.end(), section) != sections.end();
    if (!known) sections.push_back(section);
  }
  std::string out;
  for (const std::string& section : sections) {
    std::string lines;
    for (const Field& field : fields_) {
      if (!field.active() || field.options.transient || field.section() != section) continue;
      if (field.empty()) continue;
      lines += field.key.substr(field.key.rfind('.') + 1) + " = " + field.toml() + "\n";
    }
    if (lines.empty()) continue;
    if (!section.empty()) out += (out.empty() ? "[" : "\n[") + section + "]\n";
    out += lines;
  }
  return out;
}

const std::string Schema::kTableHead =
    "| key | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n";

std::vector<Schema::Row> Schema::rows() const {
  std::vector<Row> out;
  for (const Field& field : fields_) {
    std::string initial = field.options.required ? "required" : "`" + field.shown() + "`";
    if (field.shown().empty()) initial = "none";
    std::string help = field.help;
    if (!field.options.alias.empty()) help += " (also `" + field.options.alias + "`)";
    out.push_back(
        {field.section(), field.chosen ? field.selector + " = " + field.when : "", field.group,
         "| `" + field.key + "` | " + field.type() + " | " + markdown_cell(initial) + " | " +
             markdown_cell(field.allowed()) + " | " + markdown_cell(help) + " |\n"});
  }
  return out;
}

std::string Schema::to_markdown() const {
  std::string out = kTableHead;
  for (const Row& row : rows()) out += row.text;
  return out;
}

}  // namespace brine::data
