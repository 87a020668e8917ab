// Command-line parsing; the only file that includes CLI11. CLI11 splits the words and prints help;
// the schema checks the values, and files are read separately (CLI11's reader truncates texts at
// '#').
#include "apps/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "apps/cli/config_file.h"
#include "data/config/schema_text.h"
#include "tensor/base/error.h"

namespace brine {

namespace {

struct Flag {
  const data::Schema::Field* field;
  CLI::Option* option;
};

constexpr char kAttention[] = "attention";  // the last section of help

bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

std::string dashed(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// In help without --help-all.
bool is_shown_section(const std::string& section) {
  return section.empty() || section == "losses" || section == kAttention;
}

// Whether no other key with as few sections, and no flag, ends in the last part of `key`.
bool has_short_flag(const data::Schema& schema, const std::string& key) {
  const std::string last = last_part(key);
  const char* reserved[] = {"help", "help_all", "version", "quiet", "verbose", "config"};
  if (last == key || std::find(reserved, std::end(reserved), last) != std::end(reserved)) {
    return false;
  }
  const auto sections = std::ranges::count(key, '.');
  return std::ranges::none_of(schema.fields(), [&](const data::Schema::Field& other) {
    const bool nearer = other.key != key && std::ranges::count(other.key, '.') <= sections;
    return (nearer && last_part(other.key) == last) || other.options.alias == last;
  });
}

// "--attention.k" and the other names of the same value.
std::vector<std::string> flag_names(const data::Schema& schema, const data::Schema::Field& field) {
  std::vector<std::string> names = {dashed(field.key)};
  if (!field.options.alias.empty()) names.push_back(dashed(field.options.alias));
  if (has_short_flag(schema, field.key)) names.push_back(dashed(last_part(field.key)));
  return names;
}

std::string meaning(const data::Schema::Field& field) {
  std::string text = field.help;
  std::string allowed = field.allowed();
  if (!allowed.empty()) text += " [" + allowed + "]";
  const std::string& initial = field.shown();
  bool empty = initial.empty() || initial == "\"\"" || initial == "[]" || initial == "false";
  if (field.options.required) {
    text += " (required)";
  } else if (!empty) {
    text += " (default " + initial + ")";
  }
  return text;
}

Flag add_flag(CLI::App& app, const data::Schema::Field& field,
              const std::vector<std::string>& all_names) {
  Flag flag{&field, nullptr};
  std::string names;
  for (const std::string& name : all_names) {
    names += (names.empty() ? "" : ",") + name;
    if (field.is_flag()) names += ",!--no-" + name.substr(2);
  }
  if (field.is_flag()) {
    flag.option = app.add_flag(names);
    flag.option->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  } else {
    if (field.options.positional) names += "," + field.key;
    flag.option = app.add_option(names);
  }
  if (field.is_list()) {
    flag.option->expected(1, CLI::detail::expected_max_vector_size);
    flag.option->allow_extra_args()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  if (const std::string section = field.section(); !section.empty()) {
    flag.option->group(section);
  }
  return flag;
}

// CLI11 would read "[a, b]" as two values: "[" is hidden from it behind this.
constexpr char kText = '\x02';

std::vector<std::string> values_of(const Flag& flag) {
  std::vector<std::string> values = flag.option->reduced_results();
  for (std::string& value : values)
    if (value.starts_with(kText)) value.erase(0, 1);
  return values;
}

void describe_flag(const Flag& flag) {
  const char* types[] = {"", "N", "X", "TEXT", "N", "X", "TEXT"};
  flag.option->description(meaning(*flag.field));
  flag.option->type_name(types[size_t(flag.field->kind())]);
}

// One CLI11 application with the flags of a schema and those of an Invocation.
struct Parser {
  CLI::App app;
  std::vector<Flag> flags;
  Invocation invocation;
  bool help_all = false;

  Parser(const std::string& name, const std::string& about, const data::Schema& schema)
      : app(about, name) {
    app.get_formatter()->column_width(34);
    app.option_defaults()->group("Options");
    app.set_help_flag("-h,--help", "Print this help and exit");
    app.add_flag("--help-all", help_all, "Print every option and exit");
    // CLI11 prints groups in the order of their first options.
    for (const bool later : {false, true}) {
      for (const data::Schema::Field& field : schema.fields()) {
        if (later == (field.section() == kAttention)) add(schema, field);
      }
    }
    auto* config = app.add_option("--config", invocation.config_files, "TOML file of keys");
    config->type_name("FILE")->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    config->allow_extra_args(false);
    app.add_flag("--version", invocation.version, "Print versions and CPU features, and exit");
    app.add_flag("-q,--quiet", invocation.quiet, "Print results, warnings and errors only");
    app.add_flag("-v,--verbose", invocation.verbose, "Print more");
  }

  void add(const data::Schema& schema, const data::Schema::Field& field) {
    const bool known = std::any_of(flags.begin(), flags.end(),
                                   [&](const Flag& flag) { return flag.field->key == field.key; });
    if (known) return;  // variants share a key
    const data::Schema::Field* active = schema.find(field.key);
    const data::Schema::Field& shown = active ? *active : field;
    flags.push_back(add_flag(app, shown, flag_names(schema, field)));
    describe_flag(flags.back());
  }

  // False when help was requested.
  bool parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    try {
      app.parse(words);
    } catch (const CLI::CallForHelp&) {
      return false;
    } catch (const CLI::ParseError& e) {
      throw Error(e.what());
    }
    return !help_all;
  }

  // The help, of the variants that are chosen in the words so far.
  std::string help_of(data::Schema& schema, std::string end) {
    if (!help_all) {
      for (const std::string& file : invocation.config_files) apply_config_file(schema, file);
      for (const Flag& flag : flags) {
        if (!flag.field->selects || flag.option->count() == 0) continue;
        schema.set_text(flag.field->key, values_of(flag), dashed(flag.field->key));
      }
      const std::set<std::string> hidden = hide_sections(schema);
      for (const std::string& what : hidden) {
        end += (what == *hidden.begin() ? "With --help-all: " : ", ") + what;
      }
      if (!hidden.empty()) end += "\n";
    }
    app.footer(end);
    return app.help();
  }

  // Leaves the keys without a section, the losses and the keys of the chosen attention method;
  // returns the names of the others.
  std::set<std::string> hide_sections(const data::Schema& schema) {
    std::set<std::string> hidden;
    for (Flag& flag : flags) {
      const std::string section = flag.field->section();
      const data::Schema::Field* active = schema.find(flag.field->key);
      if (is_shown_section(section) && (active || section.empty())) {
        if (active) describe_flag({active, flag.option});
        continue;
      }
      flag.option->group("");  // hides it
      hidden.insert(section == kAttention ? "other attention methods" : section);
    }
    return hidden;
  }

  [[noreturn]] void refuse(const std::string& word) const {
    check(is_option(word), "unexpected argument ", show(word));
    std::vector<std::string> known = {"--help", "--version", "--quiet", "--verbose", "--config"};
    for (const Flag& flag : flags) {
      for (const std::string& name : flag.option->get_lnames()) known.push_back("--" + name);
    }
    const std::string name = word.substr(0, word.find('='));
    // --max-steps means --steps, not --log-steps.
    for (const std::string& other : known) {
      const bool is_end = name.size() > other.size() && name.ends_with(other.substr(1));
      check(!is_end, "unknown option ", name, "; the nearest is ", other);
    }
    throw Error(join("unknown option ", name, "; the nearest is ", data::nearest(name, known)));
  }

  static std::string show(const std::string& word) { return data::toml_value(word); }
};

// "--name=" means an empty value, but CLI11 would take the next word.
std::vector<std::string> escaped(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (std::string word : words) {
    const bool option = word.size() > 3 && word.starts_with("--");
    const size_t value = option ? word.find('=') + 1 : 0;
    const bool empty = option && value == word.size();
    if (word.substr(value).starts_with('[')) word.insert(value, 1, kText);
    out.push_back(empty ? word.substr(0, word.size() - 1) : word);
    if (empty) out.push_back("");
  }
  return out;
}

}  // namespace

Split split_command_line(data::Schema& everywhere, const std::vector<std::string>& words) {
  Parser parser("brine", "", everywhere);
  parser.app.prefix_command();
  Split split;
  split.rest = escaped(words);
  if (!parser.parse(split.rest)) return split;
  std::vector<std::string> remaining = parser.app.remaining();
  if (remaining.empty()) return split;
  if (is_option(remaining[0])) parser.refuse(remaining[0]);
  split.subcommand = remaining[0];
  split.rest.erase(split.rest.end() - int64_t(remaining.size()));
  return split;
}

Invocation apply_options(const std::string& name, const HelpText& help, data::Schema& schema,
                         const std::vector<std::string>& words) {
  Parser parser(name, help.about, schema);
  parser.app.allow_extras();
  parser.invocation.help = !parser.parse(escaped(words));
  if (parser.invocation.help) parser.invocation.help_text = parser.help_of(schema, help.end);
  if (parser.invocation.help || parser.invocation.version) return parser.invocation;

  std::vector<std::string> extra = parser.app.remaining();
  std::erase(extra, "--");  // ends the flags, and is not a flag
  auto dash = std::find_if(extra.begin(), extra.end(), is_option);
  if (!extra.empty()) parser.refuse(dash == extra.end() ? extra[0] : *dash);

  for (const std::string& file : parser.invocation.config_files) apply_config_file(schema, file);
  std::stable_partition(parser.flags.begin(), parser.flags.end(),
                        [](const Flag& flag) { return flag.field->selects; });
  for (const Flag& flag : parser.flags) {
    if (flag.option->count() == 0) continue;
    const std::string& key = flag.field->key;
    schema.set_text(key, values_of(flag), dashed(key));
  }
  schema.check_required();
  return parser.invocation;
}

}  // namespace brine
