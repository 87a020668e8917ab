// Describing fields, setting them with strict types and ranges, and comparing settings.
#include "data/config/schema.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/config/schema_text.h"
#include "data/io/utf8.h"
#include "tensor/base/error.h"

namespace brine::data {

namespace {

void check_range(double x, const Json& value, const FieldOptions& o, const std::string& shown) {
  check(std::isfinite(x), shown, " must be finite, got ", show(value));
  check(x >= o.min, shown, " must be at least ", o.min, ", got ", show(value));
  check(x <= o.max, shown, " must be at most ", o.max, ", got ", show(value));
  check(x > o.above, shown, " must be above ", o.above, ", got ", show(value));
  check(x < o.below, shown, " must be below ", o.below, ", got ", show(value));
}

// One function for each type of a value or of an element: checks, then writes.
void assign(bool& out, const Json& value, const Schema::Field&, const std::string& shown) {
  check(value.is_boolean(), shown, " must be true or false, got ", show(value));
  out = value.get<bool>();
}

void assign(int64_t& out, const Json& value, const Schema::Field& field, const std::string& shown) {
  bool fits = value.is_number_integer() &&
              (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX));
  check(fits, shown, " must be an integer, got ", show(value));
  check_range(double(value.get<int64_t>()), value, field.options, shown);
  // The keys of a method count keys, blocks and features: their products stay below 2^63.
  check(!field.chosen || value.get<int64_t>() <= INT32_MAX, shown, " must be at most ", INT32_MAX,
        ", got ", show(value));
  out = value.get<int64_t>();
}

void assign(double& out, const Json& value, const Schema::Field& field, const std::string& shown) {
  check(value.is_number(), shown, " must be a number, got ", show(value));
  check_range(value.get<double>(), value, field.options, shown);
  out = value.get<double>();
}

void assign(std::string& out, const Json& value, const Schema::Field& field,
            const std::string& shown) {
  check(value.is_string(), shown, " must be a text, got ", show(value));
  const std::string& text = value.get_ref<const std::string&>();
  check(is_utf8(text), shown, " must be a text in UTF-8");
  check(text.find('\0') == std::string::npos, shown, " must be a text without zero bytes");
  const auto& choices = field.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    throw Error(join(shown, " must be one of ", list_of(choices), ", got ", show(value)));
  }
  out = text;
}

template <class T>
void assign(std::optional<T>& out, const Json& value, const Schema::Field& field,
            const std::string& shown) {
  T decided{};
  assign(decided, value, field, shown);
  out = std::move(decided);
}

void assign(const Schema::EnumSlot& out, const Json& value, const Schema::Field& field,
            const std::string& shown) {
  std::string name;
  assign(name, value, field, shown);
  out.write(name);
}

template <class T>
void assign(std::vector<T>& out, const Json& value, const Schema::Field& field,
            const std::string& shown) {
  check(value.is_array(), shown, " must be a ", field.type(), ", got ", show(value));
  std::vector<T> items(value.size());
  for (size_t i = 0; i < items.size(); ++i) {
    assign(items[i], value[i], field, join(shown, "[", i, "]"));
  }
  out = std::move(items);
}

// The meaning of a command-line word as the type of T; a text if it is not of that type, so that
// assign() names the expected type.
template <class T>
Json parse_word(const std::string& word) {
  if constexpr (std::is_same_v<T, bool>) {
    if (word == "true" || word == "false") return word == "true";
  } else if constexpr (!std::is_same_v<T, std::string>) {
    const bool plus = word.size() > 1 && word[0] == '+' && word[1] != '-';
    T number = 0;
    if (parse_number(std::string_view(word).substr(plus), number)) return number;
  }
  return word;
}

Json parse_word(Schema::Kind kind, const std::string& word) {
  if (kind == Schema::Kind::flag) return parse_word<bool>(word);
  if (kind == Schema::Kind::integer || kind == Schema::Kind::integers) {
    return parse_word<int64_t>(word);
  }
  if (kind == Schema::Kind::number || kind == Schema::Kind::numbers) {
    return parse_word<double>(word);
  }
  return word;
}

Json parse_words(const Schema::Field& field, const std::vector<std::string>& words,
                 const std::string& shown) {
  if (!field.is_list()) {
    check(words.size() == 1, shown, " takes one value, got ", words.size());
    return parse_word(field.kind(), words[0]);
  }
  Json list = Json::array();
  for (const std::string& word : words) {
    // "16,32" is two numbers; a text may contain commas.
    const bool whole = field.kind() == Schema::Kind::texts;
    for (const std::string& part : whole ? std::vector{word} : split(word, ','))
      list.push_back(parse_word(field.kind(), part));
  }
  return list;
}

void assign_to(const Schema::Field& field, const Json& value, const std::string& shown) {
  std::visit(
      [&](auto& target) {
        if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(target)>>) {
          assign(*target, value, field, shown);
        } else {
          assign(target, value, field, shown);
        }
      },
      field.target);
}

// The value that a nested object has for "attention.k"; null when it has none.
const Json* value_at(const Json& object, std::string_view key) {
  const Json* at = &object;
  while (true) {
    const size_t dot = key.find('.');
    const std::string name(key.substr(0, dot));
    if (!at->is_object() || !at->contains(name)) return nullptr;
    at = &at->at(name);
    if (dot == std::string_view::npos) return at;
    key.remove_prefix(dot + 1);
  }
}

struct Setting {
  std::string key;
  const Json* value;
};

void flatten(const Schema& schema, const Json& object, const std::string& prefix,
             std::vector<Setting>& out) {
  for (auto& [name, value] : object.items()) {
    std::string key = prefix + name;
    bool is_section = value.is_object() && schema.has_section(key);
    if (is_section) {
      flatten(schema, value, key + ".", out);
    } else {
      out.push_back({key, &value});
    }
  }
}

void flatten(const Json& value, const std::string& key, std::vector<std::string>& keys,
             std::vector<const Json*>& values) {
  if (!value.is_object()) {
    keys.push_back(key);
    values.push_back(&value);
    return;
  }
  for (auto& [name, item] : value.items()) {
    flatten(item, key.empty() ? name : join(key, ".", name), keys, values);
  }
}

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) next[j] = std::min(next[j], before[j - 2] + 1);
    }
    std::swap(before, row);
    std::swap(row, next);
  }
  return row[b.size()];
}

}  // namespace

std::string Schema::open(const std::string& name) {
  std::string outer = prefix_;
  prefix_ += name + ".";
  return outer;
}

Schema& Schema::add(const std::string& name, Target target, const std::vector<std::string>& choices,
                    const std::string& help, const FieldOptions& options) {
  Field field{.key = prefix_ + name,
              .help = help,
              .target = std::move(target),
              .options = options,
              .choices = choices,
              .initial = {},
              .chosen = chosen_,
              .selector = selector_,
              .when = when_,
              .group = group_};
  const bool is_enum = std::holds_alternative<EnumSlot>(field.target);
  field.optional = !is_enum && field.empty();
  field.initial = field.empty() ? options.unset : field.toml();
  check(field.key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string::npos,
        "schema: key ", field.key, " must be in lower case with underscores");
  for (const Field& other : fields_) {
    if (other.key != field.key) continue;
    bool shared = other.chosen != nullptr && other.chosen == chosen_ && other.when != when_;
    check(shared, "schema: key ", field.key, " is described twice");
    check(other.kind() == field.kind(), "schema: variants disagree on the type of ", field.key);
  }
  fields_.push_back(std::move(field));
  return *this;
}

Schema& Schema::variants(const std::string& name, const std::string& selector, std::string& chosen,
                         const std::vector<Variant>& variants, const std::string& help,
                         const std::string& alias) {
  check(chosen_ == nullptr, "schema: variants of ", prefix_, name, " are inside a variant");
  std::vector<std::string> names;
  std::map<std::string, std::string> preset_of;
  for (const Variant& variant : variants) {
    names.push_back(variant.name);
    for (const std::string& preset : variant.presets) preset_of[preset] = variant.name;
  }
  for (const auto& [preset, variant] : preset_of) names.push_back(preset);
  FieldOptions options{.alias = alias.empty() ? prefix_ + name : alias};
  std::string outer = open(name);
  add(selector, Target(&chosen), names, help, options);
  fields_.back().selects = true;
  fields_.back().preset_of = preset_of;
  chosen_ = &chosen;
  selector_ = prefix_ + selector;
  for (const Variant& variant : variants) {
    when_ = variant.name;
    if (variant.describe) variant.describe(*this);
    group_.clear();
  }
  chosen_ = nullptr;
  selector_.clear();
  when_.clear();
  prefix_ = outer;
  return *this;
}

const Schema::Field* Schema::find(std::string_view key) const {
  for (const Field& field : fields_) {
    bool named = field.key == key || (!field.options.alias.empty() && field.options.alias == key);
    if (named && field.active()) return &field;
  }
  return nullptr;
}

bool Schema::has_section(std::string_view name) const {
  return std::any_of(fields_.begin(), fields_.end(), [&](const Field& field) {
    return field.key.size() > name.size() && field.key.compare(0, name.size(), name) == 0 &&
           field.key[name.size()] == '.';
  });
}

bool Schema::is_selector(std::string_view key) const {
  const Field* field = find(key);
  return field != nullptr && field->selects;
}

Schema& Schema::fixed(const std::string& name, const std::vector<std::string>& values) {
  fixed_.push_back({prefix_ + name, values, chosen_, when_});
  return *this;
}

bool Schema::is_fixed(std::string_view key, const Json& value, std::string_view shown) const {
  for (const Fixed& fixed : fixed_) {
    if (fixed.key != key || (fixed.chosen && *fixed.chosen != fixed.when)) continue;
    const std::vector<std::string>& known = fixed.values;
    check(std::find(known.begin(), known.end(), show(value)) != known.end(),
          shown.empty() ? key : shown, " = ", show(value), " is of an earlier version; now it is ",
          known.front());
    return true;
  }
  return false;
}

void Schema::set(std::string_view key, const Json& value, std::string_view shown) {
  auto* field = const_cast<Field*>(find(key));
  if (field == nullptr && is_fixed(key, value, shown)) return;
  check(field != nullptr, unknown_key(key));
  std::string name(shown.empty() ? std::string_view(field->key) : shown);
  const auto& presets = field->preset_of;
  if (const auto found = value.is_string() ? presets.find(value.get<std::string>()) : presets.end();
      found != presets.end()) {
    set(key, found->second, shown);
    return set(field->key.substr(0, field->key.rfind('.') + 1) + "preset", value, shown);
  }
  assign_to(*field, value, name);
  field->given = true;
  for (const Collector& c : collectors_) {
    if (field->key.rfind(c.prefix, 0) == 0) c.chosen->insert(field->key.substr(c.prefix.size()));
  }
  if (field->options.then) field->options.then();
}

void Schema::set_text(std::string_view key, const std::vector<std::string>& words,
                      std::string_view shown) {
  const Field* field = find(key);
  check(field != nullptr, unknown_key(key));
  std::string name(shown.empty() ? std::string_view(field->key) : shown);
  set(key, parse_words(*field, words, name), name);
}

Schema& Schema::group(const std::string& heading) {
  group_ = heading;
  return *this;
}

Schema& Schema::collect(const std::string& name, std::set<std::string>& chosen) {
  collectors_.push_back({name.empty() ? prefix_ : prefix_ + name + ".", &chosen});
  return *this;
}

void Schema::fill(const Json& object) {
  for (const Field& field : fields_) {
    if (!field.optional || !field.empty() || !field.active()) continue;
    if (const Json* value = value_at(object, field.key)) assign_to(field, *value, field.key);
  }
}

void Schema::set_all(const Json& object) {
  check(object.is_object(), "a configuration must be an object, got ", show(object));
  std::vector<Setting> settings;
  flatten(*this, object, "", settings);
  std::stable_partition(settings.begin(), settings.end(),
                        [&](const Setting& setting) { return is_selector(setting.key); });
  for (const Setting& setting : settings) set(setting.key, *setting.value);
}

void Schema::check_required() const {
  std::vector<std::string> missing;
  for (const Field& field : fields_) {
    if (field.options.required && !field.given && field.active()) {
      missing.push_back("--" + field.key);
    }
  }
  check(missing.empty(), "needs a value for ", list_of(missing),
        ", on the command line or in a configuration");
}

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = SIZE_MAX;
  std::string_view shortened = word.substr(0, 200);
  std::string_view tail = shortened.substr(shortened.rfind('.') + 1);
  for (const std::string& key : known) {
    // A key without its section has distance one from the key with it.
    size_t distance = std::min(edit_distance(shortened, key),
                               1 + edit_distance(tail, key.substr(key.rfind('.') + 1)));
    if (distance >= least) continue;
    least = distance;
    best = key;
  }
  return best;
}

std::vector<std::string> differences(const Json& before, const Json& after) {
  std::vector<std::string> old_keys, new_keys, lines;
  std::vector<const Json*> old_values, new_values;
  flatten(before, "", old_keys, old_values);
  flatten(after, "", new_keys, new_values);
  for (size_t i = 0; i < old_keys.size(); ++i) {
    size_t j = std::find(new_keys.begin(), new_keys.end(), old_keys[i]) - new_keys.begin();
    bool gone = j == new_keys.size();
    if (!gone && *new_values[j] == *old_values[i]) continue;
    lines.push_back(join(old_keys[i], ": ", show(*old_values[i]), " -> ",
                         gone ? "none" : show(*new_values[j])));
  }
  for (size_t j = 0; j < new_keys.size(); ++j) {
    if (std::find(old_keys.begin(), old_keys.end(), new_keys[j]) != old_keys.end()) continue;
    lines.push_back(join(new_keys[j], ": none -> ", show(*new_values[j])));
  }
  return lines;
}

}  // namespace brine::data
