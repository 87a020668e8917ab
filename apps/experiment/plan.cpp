// Reading an experiment's file: variables, axes, steps.
#include "apps/experiment/plan.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apps/cli/config_file.h"
#include "data/codec/sha256.h"
#include "data/io/json.h"
#include "tensor/base/error.h"

namespace brine::experiment {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

const char* const kRuns = "runs";

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

// A table of the file whose keys are known. Errors begin with `where`.
class Table {
 public:
  Table(const Json& json, std::string where, std::set<std::string> known)
      : json_(json), where_(std::move(where)) {
    check(json.is_object(), where_, ": wanted a table");
    for (const auto& [key, value] : json.items()) {
      check(known.contains(key), where_, ": unknown key \"", key, "\"");
    }
  }

  bool has(const char* key) const { return json_.contains(key); }
  const Json& at(const char* key) const { return json_.at(key); }
  std::string text(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    check(at(key).is_string(), where_, ": ", key, " must be a text");
    return at(key).get<std::string>();
  }
  std::string text(const char* key) const {
    check(has(key), where_, ": needs ", key);
    return text(key, "");
  }
  Variables pairs(const char* key) const {
    Variables out;
    if (!has(key)) return out;
    check(at(key).is_object(), where_, ": ", key, " must be a table");
    for (const auto& [name, value] : at(key).items()) out[name] = text_of(value);
    return out;
  }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

std::vector<std::string> split(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// {name} becomes the variable's value, and in that other variables theirs.
std::string expand(const std::string& text, const Variables& variables, const std::string& where,
                   int depth = 0) {
  check(depth < 8, where, ": the variables in \"", text, "\" refer to each other");
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t open = text.find('{', at), close = text.find('}', at);
    if (open == text.npos || close == text.npos) return out + text.substr(at);
    out += text.substr(at, open - at);
    const std::string name = text.substr(open + 1, close - open - 1);
    const auto found = variables.find(name);
    check(found != variables.end(), where, ": no variable {", name, "}");
    // The directory of the runs is decided later.
    out += name == kRuns ? "{runs}" : expand(found->second, variables, where, depth + 1);
    at = close + 1;
  }
  return out;
}

// The words of a command: {name} is a part of one word, {name...} any number of words.
std::vector<std::string> expand_words(const std::string& command, const Variables& variables,
                                      const std::string& where) {
  std::vector<std::string> out;
  for (const std::string& word : split(command)) {
    if (word.starts_with("{") && word.ends_with("...}")) {
      const std::string all = expand(word.substr(0, word.size() - 4) + "}", variables, where);
      for (const std::string& one : split(all)) out.push_back(one);
    } else {
      const std::string one = expand(word, variables, where);
      if (!one.empty()) out.push_back(one);
    }
  }
  return out;
}

// Every combination of the axes' values; a value is a text, or a table of variables.
std::vector<Variables> combinations(const Json& axes, const std::string& where) {
  std::vector<Variables> all = {{}};
  check(axes.is_object(), where, ": each must be a table of lists");
  for (const auto& [axis, values] : axes.items()) {
    check(values.is_array() && !values.empty(), where, ": each.", axis, " must be a list");
    std::vector<Variables> more;
    for (const Variables& before : all) {
      for (const Json& value : values) {
        Variables one = before;
        if (value.is_object()) {
          for (const auto& [name, part] : value.items()) one[name] = text_of(part);
          check(one.contains(axis), where, ": a value of each.", axis, " has no ", axis);
        } else {
          one[axis] = text_of(value);
        }
        more.push_back(std::move(one));
      }
    }
    all = std::move(more);
  }
  return all;
}

// Axes are lists, or the name of a list in the scale: each = { method = "methods" }.
Json with_lists(Json axes, const Json& lists, const std::string& where) {
  for (auto& [axis, values] : axes.items()) {
    if (!values.is_string()) continue;
    const std::string name = values.get<std::string>();
    check(lists.contains(name), where, ": no list \"", name, "\" for each.", axis);
    values = Json(lists.at(name));
  }
  return axes;
}

struct Reader {
  const PlanRequest& request;
  Json file;
  Variables variables = {};
  Json lists = Json::object();

  void add_variables(const Json& table, const std::string& where) {
    check(table.is_object(), where, ": wanted a table");
    for (const auto& [name, value] : table.items()) {
      if (value.is_array()) {
        lists[name] = value;
      } else {
        variables[name] = text_of(value);
      }
    }
  }

  void read_variables() {
    const std::string& path = request.file;
    if (file.contains("variables")) add_variables(file["variables"], path + ": [variables]");
    check(file.contains("scale") && file["scale"].contains(request.scale), path,
          ": has no scale \"", request.scale, "\"");
    add_variables(file["scale"][request.scale], path + ": [scale." + request.scale + "]");
    const Json files = file.value("files", Json::object());
    for (const auto& [name, entry] : files.items()) {
      variables[name] = Table(entry, path + ": [files] " + name, {"path", "fetch"}).text("path");
    }
    for (const std::string& setting : request.set) {
      const size_t equals = setting.find('=');
      check(equals != setting.npos && equals > 0, "--set ", setting, ": wanted NAME=VALUE");
      const std::string name = setting.substr(0, equals), value = setting.substr(equals + 1);
      check(variables.contains(name) || lists.contains(name), "--set ", setting, ": ", path,
            " has no variable ", name);
      if (lists.contains(name)) {
        lists[name] = Json::array();
        for (const std::string& item : split(value)) lists[name].push_back(item);
      } else {
        variables[name] = value;
      }
    }
    variables[kRuns] = "";
    variables["scale"] = request.scale;
    for (const auto& [name, value] : variables) {
      if (name != kRuns) variables[name] = expand(value, variables, path);
    }
  }

  void check_files() const {
    const Json files = file.value("files", Json::object());
    for (const auto& [name, entry] : files.items()) {
      for (const std::string& one : split(variables.at(name))) {
        check(fs::exists(one), request.file, ": ", name, " ", one, " is missing; ",
              text_of(entry.value("fetch", Json("give one"))), ", or --set ", name, "=PATH");
      }
    }
  }

  void add_steps(Plan& plan, const Json& json) const {
    const Table entry(json, join(request.file, ": step ", text_of(json.value("id", Json("?")))),
                      {"id", "name", "command", "each", "take", "rows", "lines"});
    const std::string& where = entry.where();
    const Json axes = with_lists(json.value("each", Json::object()), lists, where);
    for (const Variables& combination : combinations(axes, where)) {
      Step step;
      step.id = entry.text("id");
      step.axes = combination;
      step.take = entry.pairs("take");
      Variables all = variables;
      for (const auto& [name, value] : combination) all[name] = value;
      step.name = expand(entry.text("name"), all, where);
      check(!step.name.empty() && step.name.find('/') == step.name.npos, where, ": the name \"",
            step.name, "\" must be that of a file");
      all["out"] = "{runs}/" + step.name;
      step.words = expand_words(entry.text("command", ""), all, where);
      for (auto& [value, pointer] : step.take) pointer = expand(pointer, all, where);
      step.rows = expand(entry.text("rows", ""), all, where);
      step.lines = expand(entry.text("lines", ""), all, where);
      check(step.words.empty() != step.lines.empty(), where,
            ": needs command or lines, one of them");
      check(step.lines.empty() || !step.take.empty(), where, ": lines need take");
      plan.steps.push_back(std::move(step));
    }
  }
};

// Whether a word names {runs}/NAME or a file below it.
bool reads(const std::string& word, const std::string& name) {
  const std::string directory = "{runs}/" + name;
  const size_t at = word.find(directory), end = at + directory.size();
  return at != word.npos && (end == word.size() || word[end] == '/');
}

// A step that reads what another one makes is another step when that one changes.
void connect(std::vector<Step>& steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    std::vector<std::string> words = steps[i].words;
    words.push_back(steps[i].lines);
    for (size_t before = 0; before < i; ++before) {
      const bool needed = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
        return reads(word, steps[before].name);
      });
      if (needed) steps[i].needs.push_back(steps[before].definition());
    }
  }
}

}  // namespace

std::string with_runs(std::string text, const std::string& runs) {
  for (size_t at = 0; (at = text.find("{runs}", at)) != text.npos; at += runs.size()) {
    text.replace(at, 6, runs);
  }
  return text;
}

std::vector<std::string> Step::command(const std::string& runs) const {
  std::vector<std::string> out;
  for (const std::string& word : words) out.push_back(with_runs(word, runs));
  return out;
}

std::string Step::definition() const {
  Json all = {{"words", words}, {"take", take}, {"rows", rows}, {"lines", lines}, {"needs", needs}};
  return data::sha256_hex(json_text(all));
}

Plan read_plan(const PlanRequest& request) {
  Reader reader{.request = request, .file = toml_as_json(request.file)};
  Table(reader.file, request.file,
        {"title", "paper", "about", "variables", "scale", "files", "step", "table", "figure"});
  reader.read_variables();
  if (request.files_exist) reader.check_files();
  Plan plan;
  plan.name = fs::path(request.file).stem().string();
  plan.scale = request.scale;
  for (const Json& step : reader.file.value("step", Json::array())) reader.add_steps(plan, step);
  check(!plan.steps.empty(), request.file, ": has no [[step]]");
  connect(plan.steps);
  std::set<std::string> names;
  for (const Step& step : plan.steps) {
    check(names.insert(step.name).second, request.file, ": two steps are named ", step.name);
  }
  return plan;
}

}  // namespace brine::experiment
