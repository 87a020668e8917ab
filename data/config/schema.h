// One description of a config struct makes its flags, file keys, JSON, resolved copy and docs.
//
//   enum class Shape { constant, linear };
//   struct TrainConfig {
//     double learning_rate = 3e-4;
//     Shape shape = Shape::linear;
//     std::optional<int64_t> steps;  // empty: decided later
//     void describe(Schema& s) {
//       s.field("learning_rate", learning_rate, "Peak learning rate", {.above = 0});
//       s.choice("shape", shape, {{Shape::constant, "constant"}, {Shape::linear, "linear"}},
//                "Shape of the rate");
//       s.field("steps", steps, "Optimizer steps", {.min = 1, .unset = "by the recipe"});
//     }
//   };
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "data/config/named.h"
#include "data/io/json.h"

namespace brine::data {

// The restrictions of a value. Ranges apply to every element of a list; numbers must be finite.
struct FieldOptions {
  double min = -std::numeric_limits<double>::infinity();    // inclusive
  double max = std::numeric_limits<double>::infinity();     // inclusive
  double above = -std::numeric_limits<double>::infinity();  // exclusive
  double below = std::numeric_limits<double>::infinity();   // exclusive
  bool required = false;    // has no default; check_required() names it
  bool positional = false;  // also an argument without a flag
  bool transient = false;   // for one run only (--resume): omitted from to_json() and to_toml()
  std::string alias = {};   // a second key for the same value, in full
  // For a key that may be empty: its default as help and documentation show it.
  std::string unset = {};
  std::string shown = {};           // what they show instead of the default, if not empty
  std::function<void()> then = {};  // called after each change of the value
};

// One of several configs, chosen by name.
struct Variant {
  std::string name;
  std::function<void(class Schema&)> describe;
  // Names that choose it, too, and give its key `preset` that value.
  std::vector<std::string> presets = {};
};

// E of an enum E and of an optional one.
template <class E>
struct EnumOf {
  using type = E;
};
template <class E>
struct EnumOf<std::optional<E>> {
  using type = E;
};

class Schema {
 public:
  // An enum, read and written by the names of its values; empty: no value yet.
  struct EnumSlot {
    std::function<std::optional<std::string>()> read;
    std::function<void(const std::string&)> write;  // one of the choices
  };
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                              std::vector<double>*, std::vector<std::string>*, std::optional<bool>*,
                              std::optional<int64_t>*, std::optional<double>*,
                              std::optional<std::string>*, EnumSlot>;
  enum class Kind { flag, integer, number, text, integers, numbers, texts };

  struct Field {
    std::string key;  // with its sections: "attention.k"
    std::string help;
    Target target;
    FieldOptions options;
    std::vector<std::string> choices;  // of a choice, else empty
    std::string initial;               // the default as TOML, or FieldOptions::unset
    const std::string& shown() const { return options.shown.empty() ? initial : options.shown; }
    const std::string* chosen = nullptr;  // for a variant: the selector's value...
    std::string selector;                 // ...its key...
    std::string when;                     // ...and the value that makes this field exist
    std::string group = {};               // Schema::group()
    bool selects = false;                 // is itself a selector
    std::map<std::string, std::string> preset_of = {};  // of a selector: the variants of presets
    bool given = false;                                 // was set since it was described

    std::string section() const;  // "attention" of "attention.k"; "" without a section
    bool active() const { return chosen == nullptr || *chosen == when; }
    Kind kind() const;
    bool is_flag() const { return kind() == Kind::flag; }
    bool is_list() const { return kind() >= Kind::integers; }
    bool empty() const;           // has no value yet
    bool optional = false;        // may be empty
    std::string toml() const;     // the value now; "" when empty
    std::string type() const;     // "true or false", "integer", "list of numbers", ...
    std::string allowed() const;  // "> 0, <= 1", "head, token"; empty when anything goes
  };

  // Binds `name` to a member, which must outlive the schema; its value now is the default. The
  // member may be a std::optional: while it is empty, to_json() and to_toml() leave the key out.
  template <class T>
  Schema& field(const std::string& name, T& member, const std::string& help,
                const FieldOptions& options = {}) {
    return add(name, Target(&member), {}, help, options);
  }
  // A text (or list of texts) that must be one of `choices`.
  template <class T>
  Schema& choice(const std::string& name, T& member, const std::vector<std::string>& choices,
                 const std::string& help, const FieldOptions& options = {}) {
    return add(name, Target(&member), choices, help, options);
  }
  // An enum, or an optional one, by the names of its values.
  template <class Member, size_t N, class E = typename EnumOf<Member>::type>
  requires std::is_enum_v<E> Schema& choice(const std::string& name, Member& member,
                                            const Named<typename EnumOf<Member>::type> (&names)[N],
                                            const std::string& help,
                                            const FieldOptions& options = {}) {
    const std::vector<Named<E>> table(names, names + N);
    std::vector<std::string> choices;
    choices.reserve(table.size());
    for (const Named<E>& known : table) choices.push_back(known.name);
    EnumSlot slot{[&member, table]() -> std::optional<std::string> {
                    const std::optional<E> value = member;
                    for (const Named<E>& known : table) {
                      if (value == known.value) return known.name;
                    }
                    return std::nullopt;
                  },
                  [&member, table](const std::string& text) {
                    for (const Named<E>& known : table) {
                      if (text == known.name) member = known.value;
                    }
                  }};
    add(name, Target(std::move(slot)), choices, help, options);
    fields_.back().optional = !std::is_enum_v<Member>;
    return *this;
  }
  // The fields of another config, under `name`.
  template <class Config>
  Schema& section(const std::string& name, Config& config) {
    std::string outer = open(name);
    config.describe(*this);
    prefix_ = outer;
    return *this;
  }
  // Section `name` whose key `selector` (alias: `alias`, or `name` itself) chooses the variant
  // whose keys the section has. Every variant needs separate storage. Variants may share keys of
  // one type.
  Schema& variants(const std::string& name, const std::string& selector, std::string& chosen,
                   const std::vector<Variant>& variants, const std::string& help,
                   const std::string& alias = "");
  // The heading under which documentation shows the keys that follow in a variant.
  Schema& group(const std::string& heading);
  // A key of earlier versions whose value is fixed now: `values`, as in JSON, are accepted and
  // change nothing, others are refused.
  Schema& fixed(const std::string& name, const std::vector<std::string>& values);
  // From now on `chosen` collects the name, without the section, of every key of section `name`
  // that is set, to tell set values from defaults; "" is the section that is being described.
  Schema& collect(const std::string& name, std::set<std::string>& chosen);

  // Sets a key from JSON: strict types, except that an integer is accepted for a number. Throws an
  // Error that starts with `shown` (default: the key). Set selectors before the keys they select.
  void set(std::string_view key, const Json& value, std::string_view shown = {});
  // The same from the words of a command line.
  void set_text(std::string_view key, const std::vector<std::string>& words,
                std::string_view shown = {});
  // Every key of a nested object, selectors first. An unknown key is an error.
  void set_all(const Json& object);
  // Gives the optional keys that are empty their values in a nested object. Keys that have a value
  // are not changed, other keys of the object are ignored.
  void fill(const Json& object);
  // Throws Error naming the required fields that were not set.
  void check_required() const;

  const std::vector<Field>& fields() const { return fields_; }
  // The active field of a key or alias, or null.
  const Field* find(std::string_view key) const;
  bool has_section(std::string_view name) const;
  bool is_selector(std::string_view key) const;
  // The reason why find() failed, with the nearest known key.
  std::string unknown_key(std::string_view key) const;

  // Active fields that are not transient, in order: nested objects, and the same as TOML.
  Json to_json() const;
  std::string to_toml() const;
  // The rows of a Markdown table, and the table.
  struct Row {
    // "attention", "attention.method = blocks" (of a variant's keys), "Kept keys" (of a group()),
    // "| `attention.k` | ..."
    std::string section, variant, group, text;
  };
  static const std::string kTableHead;  // key, type, default, allowed, meaning
  std::vector<Row> rows() const;
  std::string to_markdown() const;

 private:
  Schema& add(const std::string& name, Target target, const std::vector<std::string>& choices,
              const std::string& help, const FieldOptions& options);
  std::string open(const std::string& name);
  bool is_fixed(std::string_view key, const Json& value, std::string_view shown) const;

  std::vector<Field> fields_;
  struct Fixed {
    std::string key;
    std::vector<std::string> values;
    const std::string* chosen;  // as of a Field
    std::string when;
  };
  std::vector<Fixed> fixed_;
  struct Collector {
    std::string prefix;  // "attention."
    std::set<std::string>* chosen;
  };
  std::vector<Collector> collectors_;
  std::string prefix_;  // "attention." inside that section
  const std::string* chosen_ = nullptr;
  std::string selector_, when_, group_;
};

template <class Config>
Schema schema_of(Config& config) {
  Schema schema;
  config.describe(schema);
  return schema;
}

// The nearest of `known` by edit distance; "" when there is none.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// One line for each key in which two configs differ: `attention.k: 16 -> 32`.
std::vector<std::string> differences(const Json& before, const Json& after);

}  // namespace brine::data
