// TOML configuration files; the only file that includes toml++.
#include "apps/cli/config_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "nn/models/model_config.h"
#include "tensor/base/error.h"

namespace brine {

namespace {

constexpr uint64_t kMaxBytes = 1 << 20;  // a configuration is small

toml::table parsed(const std::string& path) {
  const std::string text = data::read_file(path, kMaxBytes);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    std::string what(e.description());
    std::replace_if(  // it quotes the file, including line ends
        what.begin(), what.end(), [](unsigned char c) { return c < 0x20; }, ' ');
    throw Error(join(path, ":", e.source().begin.line, ": ", what));
  }
}

// A text, a number or a flag; null for anything else, since TOML has no null.
data::Json plain_value(const toml::node& node) {
  if (auto* text = node.as_string()) return text->get();
  if (auto* integer = node.as_integer()) return integer->get();
  if (auto* number = node.as_floating_point()) return number->get();
  if (auto* flag = node.as_boolean()) return flag->get();
  return nullptr;
}

struct Setting {
  std::string key;
  data::Json value;
  std::string where;  // "FILE:LINE: "
};

struct Reader {
  const data::Schema& schema;
  const std::string& path;
  std::vector<Setting> settings;

  std::string where(const toml::node& node) const {
    return join(path, ":", node.source().begin.line, ": ");
  }

  data::Json value_of(const toml::node& node, const std::string& key) const {
    if (data::Json value = plain_value(node); !value.is_null()) return value;
    const toml::array* array = node.as_array();
    check(array != nullptr, where(node), key,
          " has a value that no key takes (a date, a time or a table)");
    data::Json list = data::Json::array();
    for (const toml::node& item : *array) list.push_back(value_of(item, key));
    return list;
  }

  void read(const toml::table& table, const std::string& prefix) {
    for (auto& [name, node] : table) {
      std::string part(name.str());
      std::string key = prefix + part;
      check(part.find('.') == std::string::npos, where(node), "the key \"", key,
            "\" has a dot inside quotes");
      const toml::table* section = node.as_table();
      if (section != nullptr && schema.has_section(key)) {
        read(*section, key + ".");
        continue;
      }
      check(section == nullptr || schema.find(key) != nullptr, where(node),
            schema.unknown_key(key));
      settings.push_back({key, value_of(node, key), where(node)});
    }
  }
};

}  // namespace

void apply_config_file(data::Schema& schema, const std::string& path) {
  const toml::table table = parsed(path);
  Reader reader{schema, path, {}};
  reader.read(table, "");
  // A selector determines which keys exist.
  std::stable_partition(reader.settings.begin(), reader.settings.end(),
                        [&](const Setting& s) { return schema.is_selector(s.key); });
  for (size_t i = 0; i < reader.settings.size(); ++i) {
    const Setting& setting = reader.settings[i];
    for (size_t j = 0; j < i; ++j) {  // under two names: TOML itself refuses one name twice
      const data::Schema::Field* key = schema.find(setting.key);
      check(!key || key != schema.find(reader.settings[j].key), setting.where, setting.key,
            " is the same key as ", reader.settings[j].key, ", which is also in this file");
    }
    if (setting.key.rfind("attention.", 0) == 0)
      nn::refuse_old_blocks(setting.key.substr(10), setting.value, path);
    try {
      schema.set(setting.key, setting.value);
    } catch (const Error& e) {
      throw Error(setting.where + e.what());
    }
  }
}

}  // namespace brine
