// Every file in configs/ is accepted by the schema of its subcommand, and the paper's recipe has
// its numbers.
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/config_file.h"
#include "apps/cli/options.h"
#include "apps/cli/program.h"
#include "distill/runs/distillation.h"
#include "tests/apps/helpers.h"
#include "tests/paths.h"
#include "tests/refusals.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> config_files() {
  std::vector<fs::path> out;
  for (const auto& e : fs::recursive_directory_iterator(brine::test::source_dir() + "/configs")) {
    if (e.path().parent_path().filename() == "experiments") continue;  // below
    if (e.path().extension() == ".toml") out.push_back(e.path());
  }
  return out;
}

// The X of "# brine X: ..." on the first line.
std::string subcommand_of(const std::string& text) {
  const std::string start = "# brine ";
  if (text.rfind(start, 0) != 0) return "";
  return text.substr(start.size(), text.find(':') - start.size());
}

// The values of the subcommand's keys after reading the file; throws the program's error.
data::Json read_config(const fs::path& path) {
  const std::string name = subcommand_of(read_all(path));
  for (const Subcommand& command : subcommands()) {
    if (command.name != name) continue;
    CommandBody body = command.make();
    data::Schema keys;
    body.describe(keys);
    apply_config_file(keys, path.string());
    return keys.to_json();
  }
  throw Error(
      join(path.string(), ": its first line names no subcommand, \"# brine distill: ...\""));
}

// What is wrong with the words of a command, without running it.
std::string refusal(const std::vector<std::string>& words) {
  for (const Subcommand& command : subcommands()) {
    if (words.empty() || command.name != words[0]) continue;
    const CommandBody body = command.make();
    CommonOptions common;
    data::Schema keys;
    body.describe(keys);
    common.describe(keys);
    return message([&] { apply_options("brine", {}, keys, {words.begin() + 1, words.end()}); });
  }
  return "no such command";
}

}  // namespace

TEST_CASE("every file in configs/ is accepted by the schema of the subcommand that it names") {
  const std::vector<fs::path> files = config_files();
  CHECK(files.size() >= 5);
  for (const fs::path& file : files) {
    INFO(file.string());
    CHECK(message([&] { read_config(file); }) == "no error");
  }
}

TEST_CASE("every command of configs/experiments is one of the program, at both scales") {
  Scratch scratch;
  const std::string plan = (scratch / "plan").string(), root = brine::test::source_dir();
  size_t steps = 0;
  for (const auto& entry : fs::directory_iterator(root + "/configs/experiments")) {
    for (const char* scale : {"small", "paper"}) {
      const std::string call =
          join(root, "/scripts/run-experiment ", entry.path().string(), " --plan --scale ", scale,
               " --brine ", brine::test::binary_dir(), "/brine >", plan);
      REQUIRE(std::system(call.c_str()) == 0);
      std::istringstream lines(read_all(plan));
      for (std::string line; std::getline(lines, line);) {
        INFO(line);
        if (contains(line, ": lines of ")) continue;
        std::istringstream in(line.substr(line.find(": ") + 2));
        std::vector<std::string> words;
        for (std::string word; in >> word;) words.push_back(word);
        CHECK(refusal(words) == "no error");
        ++steps;
      }
    }
  }
  CHECK(steps > 1000);
}

TEST_CASE("a key that no schema has fails the reading of configs/") {
  Scratch scratch;
  CHECK(contains(
      message([&] { read_config(scratch.write("a.toml", "# brine train: x\nfoo = 1\n")); }),
      "unknown key \"foo\""));
  CHECK_REFUSES(read_config(scratch.write("b.toml", "steps = 1\n")), "names no subcommand");
}

TEST_CASE("--recipe paper: the numbers of the paper's tables") {
  struct Row {
    const char* task;  // "": text
    int batch;
    double epochs;  // 0: steps
    int k, columns;
    double rate;
  };
  const Row rows[] = {{"mnli", 16, 20, 25, 32, 1e-5},
                      {"cola", 64, 50, 25, 32, 1e-5},
                      {"mrpc", 32, 50, 25, 32, 1e-5},
                      {"", 32, 0, 64, 64, 2e-6}};
  for (const Row& row : rows) {
    INFO(row.task);
    distill::Distillation what;
    what.recipe = distill::Recipe::paper;
    what.task.task = row.task;
    what.resolve({.causal = !what.on_task(), .massive = {}});
    const data::Json c = data::schema_of(what).to_json();
    CHECK(c["batch_size"] == row.batch);
    CHECK(c["attention"]["method"] == "sea");
    CHECK(c["attention"]["k"] == row.k);
    CHECK(c["attention"]["columns"] == row.columns);
    CHECK(c["attention"]["decoder"] == "paper");
    CHECK(c["attention"]["prior"] == "none");
    CHECK(c["attention"]["mode"] == "causal-per-batch");
    CHECK(c["optimizer"]["learning_rate"] == row.rate);
    CHECK(c["optimizer"]["attention_learning_rate"] == 1e-4);
    if (row.epochs > 0) {
      CHECK(c["epochs"] == row.epochs);
      CHECK(c["sequence_length"] == 256);
    } else {
      CHECK(c["steps"] == 10000);
      CHECK(c["attention"]["mu_scope"] == "token");  // OPT's mu maps all heads of a token together
      CHECK(c["sequence_length"] == 0);              // OPT's positions, 2,048
    }
    const std::map<std::string, double> weights = {{"approx", 1}, {"prob", 1},     {"kl", 0.1},
                                                   {"mse", 1},    {"context", 1},  {"kd", 5},
                                                   {"task", 0.1}, {"kd_task", 0.2}};
    for (const auto& [name, weight] : weights) CHECK(c["losses"][name] == weight);
  }
}

TEST_CASE("configs/lra: the numbers of the released settings, the same rate for all parameters") {
  struct Row {
    const char *file, *model;
    int batch, accumulate, epochs;
    double rate, decay;
    int layers, heads, hidden, inner, tokens;
  };
  const Row rows[] = {
      {"listops", "listops", 4, 8, 30, 2e-3, .1, 6, 8, 512, 2048, 2048},
  };
  const std::string folder = brine::test::source_dir() + "/configs/lra/";
  for (const Row& row : rows) {
    INFO(row.file);
    const data::Json dense = read_config(folder + row.file + ".toml");
    CHECK(dense["model"] == join("configs/lra/", row.model, ".json"));
    for (const data::Json& c : {dense, read_config(folder + row.file + "-student.toml")}) {
      CHECK(c["task"] == row.file);
      CHECK(c["batch_size"] == row.batch);
      CHECK(c["accumulate"] == row.accumulate);
      CHECK(c["epochs"] == row.epochs);
      CHECK(c["optimizer"]["learning_rate"] == row.rate);
      CHECK(c["optimizer"]["attention_learning_rate"] == row.rate);
      CHECK(c["optimizer"]["weight_decay"] == row.decay);
      CHECK(c["optimizer"]["clip"] == 0);
    }
    const nn::ModelConfig model = nn::load_config(folder + row.model + ".json");
    CHECK(model.shape().layers == row.layers);
    CHECK(model.shape().heads == row.heads);
    CHECK(model.shape().hidden_size == row.hidden);
    CHECK(model.shape().inner_size == row.inner);
    CHECK(model.shape().max_positions == row.tokens);
    CHECK(model.shape().vocab_size == data::task_named(row.file).tokenizer()->vocab_size());
  }
}

}  // namespace brine::tests
