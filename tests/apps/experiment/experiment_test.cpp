// Experiments: steps of a file, rows that are kept, what is run again, what is printed.
#include "apps/experiment/experiment.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/options.h"
#include "apps/cli/program.h"
#include "tests/apps/world.h"

namespace brine::tests {
namespace {

using experiment::Row;

// Two students of two steps each, their perplexities at two k, and the curve of their losses.
const char* const kFile = R"(
title = "Students & their k"
paper = "Table 0"

[variables]
rate = "1e-3"
teacher = "teacher"

[scale.small]
seeds = [1, 2]

[scale.paper]
seeds = [1, 2, 3]

[files.text]
path = "text.txt"
fetch = "scripts/fetch-data makes it"

[[step]]
id = "student"
name = "student-{kind}-{seed}"
command = """distill --teacher {teacher} --data {text} --batch-size 2 --steps 2 --columns 12
  --k 4 --optimizer.learning-rate {rate} {settings...} --seed {seed} --out {out}"""
each.seed = "seeds"
each.kind = [
  { kind = "light", settings = "--attention.preset light" },
  { kind = "lean", settings = "--attention.decoder lean --attention.prior none" }]

[[step]]
id = "perplexity"
name = "perplexity-{kind}-{seed}-k{k}"
command = "eval --model {runs}/student-{kind}-{seed} --data {text} --k {k} --json"
each = { kind = ["light", "lean"], seed = "seeds", k = [4, 8] }
take = { perplexity = "/perplexity", tokens = "/tokens", file = "/cut/files/-1" }

[[step]]
id = "curve"
name = "curve-{kind}"
lines = "{runs}/student-{kind}-1/log.jsonl"
each = { kind = ["light", "lean"] }
take = { step = "/step", loss = "/loss" }
)";

std::vector<Row> rows_in(const std::filesystem::path& directory) {
  return experiment::Rows(directory).all();
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("experiment: rows of every step, nothing twice, their values printed") {
  const World& w = world();
  w.write("study.toml", kFile);
  const Finished plan = w.must("experiment study.toml --out study --plan");
  CHECK(occurrences(plan.out, "\n") == 4 + 8 + 2);
  CHECK(contains(plan.out, "distill --teacher teacher"));
  CHECK_FALSE(std::filesystem::exists(w.path("study/rows.jsonl")));
  const Finished first = w.must("experiment study.toml --out study --threads 1");
  const std::vector<Row> rows = rows_in(w.path("study"));
  size_t runs = 0, values = 0, lines = 0;
  for (const Row& one : rows) {
    runs += one["step"] == "student";
    values += one["step"] == "perplexity" && one["values"]["perplexity"].get<double>() > 1 &&
              contains(one["values"]["file"].get<std::string>(), "text.txt");
    lines += one["step"] == "curve" && one["values"]["loss"].is_number();
    CHECK(one["definition"].get<std::string>().size() == 64);
    CHECK(contains(one["machine"].get<std::string>(), "1 threads"));
  }
  CHECK(runs == 4);
  CHECK(values == 8);
  CHECK(lines == 4);  // two steps of two students
  CHECK(rows[1]["seed"] == 2);
  CHECK(contains(rows[4]["command"].get<std::string>(),
                 "brine eval --model study/runs/student-light-1 --data text.txt --k 4 --json"));
  // A line for each row with values.
  CHECK(occurrences(first.out, "\n") == 8 + 4);
  const std::string number = rows[4]["values"]["tokens"].dump();
  CHECK(occurrences(first.out, "\nperplexity-light-2-k8  file ") == 1);
  CHECK(occurrences(first.out, number + "\n") == 8);
  CHECK_FALSE(contains(first.out, "student-light-1 "));

  const std::string before = read_all(w.path("study/rows.jsonl"));
  CHECK(w.must("experiment study.toml --out study --threads 1").out == first.out);
  CHECK(read_all(w.path("study/rows.jsonl")) == before);
  CHECK(occurrences(w.must("experiment study.toml --out study --plan").out, "done ") == 4 + 8 + 2);
}

TEST_CASE("experiment: rows of another configuration are made again, those of a commit kept") {
  const World& w = world();
  w.write("study.toml", kFile);
  const Finished first = w.must("experiment study.toml --out asked --threads 1");
  const std::vector<Row> rows = rows_in(w.path("asked"));
  const std::string call = "experiment study.toml --out asked --set rate=2e-3";
  // A run continues only with its settings.
  Finished f = w.run(call);
  CHECK(f.status == 1);
  check_says(f.error, {"student-light-1", "learning_rate"});
  std::filesystem::remove_all(w.path("asked/runs"));
  // The evaluations and curves of these students, too.
  const std::string printed = w.must(call).out;
  std::vector<Row> again = rows_in(w.path("asked"));
  REQUIRE(again.size() == 2 * rows.size());
  again.erase(again.begin(), again.begin() + int64_t(rows.size()));
  for (size_t i = 4; i < 12; ++i) CHECK(again[i]["values"] != rows[i]["values"]);
  CHECK(occurrences(printed, "\n") == occurrences(first.out, "\n"));  // the new rows alone
  CHECK(
      contains(read_all(w.path("asked/runs/student-lean-2/config.toml")), "learning_rate = 0.002"));
  const std::string older = changed(read_all(w.path("asked/rows.jsonl")),
                                    again[0]["commit"].get<std::string>(), "0123456789ab");
  w.write("asked/rows.jsonl", older);
  w.must(call);
  CHECK(read_all(w.path("asked/rows.jsonl")) == older);
}

TEST_CASE("experiment: a stop keeps what is finished, and the same command goes on") {
  const World& w = world();
  w.write("study.toml", kFile);
  w.must("experiment study.toml --out whole --threads 1");
  const std::vector<Row> rows = rows_in(w.path("whole"));
  std::filesystem::remove_all(w.path("stopped"));
  const Finished f = w.run(
      "experiment study.toml --out stopped 2>stopped.err & pid=$!; "
      "for i in $(seq 2000); do [ -e stopped/rows.jsonl ] && break; sleep .01; done; "
      "kill -TERM $pid; wait $pid");
  CHECK(f.status == 1);
  check_says(read_all(w.path("stopped.err")), {"stopped by SIGTERM"});
  const size_t kept = rows_in(w.path("stopped")).size();
  CHECK(kept >= 1);
  CHECK(kept < rows.size());
  w.must("experiment study.toml --out stopped --jobs 2");
  std::map<std::string, Row> got, wanted;
  for (const Row& one : rows_in(w.path("stopped"))) got[one["name"]] = one["values"];
  for (const Row& one : rows) wanted[one["name"]] = one["values"];
  CHECK(got.size() == wanted.size());
  CHECK(got == wanted);
}

TEST_CASE("experiment: a directory without a checkpoint is begun again, a finished one reused") {
  const World& w = world();
  w.write("study.toml", kFile);
  std::filesystem::create_directories(w.path("torn/runs/student-lean-1"));
  w.write("torn/runs/student-lean-1/config.toml", "half");
  w.must("experiment study.toml --out torn --threads 1");
  CHECK(read_all(w.path("torn/runs/student-lean-1/config.toml")) != "half");
  const std::vector<Row> rows = rows_in(w.path("torn"));
  std::filesystem::remove(w.path("torn/rows.jsonl"));
  w.must("experiment study.toml --out torn --threads 1");
  const std::vector<Row> again = rows_in(w.path("torn"));
  REQUIRE(again.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) CHECK(again[i]["values"] == rows[i]["values"]);
}

TEST_CASE("experiment: what is wrong with a file or a run is one line") {
  const World& w = world();
  auto refused = [&](const std::string& text, const std::string& more,
                     std::initializer_list<std::string> parts) {
    w.write("bad.toml", text);
    std::filesystem::remove_all(w.path("bad"));
    const Finished f = w.run("experiment bad.toml --out bad " + more);
    CHECK(f.status == 1);
    CHECK(occurrences(f.error, "brine experiment: ") == 1);
    check_says(f.error, parts);
  };
  refused(changed(kFile, "text.txt", "none.txt"), "",
          {"text", "none.txt", "is missing", "scripts/fetch-data"});
  refused(changed(kFile, "paper = ", "papr = "), "", {"unknown key", "papr"});
  refused(changed(kFile, "{rate}", "{rat}"), "", {"step student", "no variable", "rat"});
  refused(changed(kFile, "-k{k}", ""), "", {"two steps", "perplexity-light-1"});
  refused(changed(kFile, "/perplexity\"", "/perplexty\""), "",
          {"perplexity-light-1-k4", "/perplexty"});
  refused(changed(kFile, "--columns 12", "--colums 12"), "",
          {"student-light-1", "status", "colums"});
  refused(kFile, "--set nothing=1", {"--set nothing=1", "no variable"});
  refused(kFile, "--scale medium", {"scale", "medium"});
  refused("title = 3 4", "", {"bad.toml", "1"});
  const Finished f = w.run("experiment unknown-name --out bad");
  CHECK(f.status == 1);
  check_says(f.error, {"unknown-name", "known are"});
  check_says(w.run("experiment").error, {"a name is needed", "known are"});
}

TEST_CASE(
    "experiment: every command of configs/experiments is one of the program, at both scales") {
  size_t files = 0;
  const std::filesystem::path folder = test::source_dir() + "/configs/experiments";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    for (const char* scale : {"small", "paper"}) {
      const experiment::Plan plan = experiment::read_plan(
          {.file = entry.path().string(), .scale = scale, .set = {}, .files_exist = false});
      ++files;
      for (const experiment::Step& step : plan.steps) {
        if (step.words.empty()) continue;
        INFO(plan.name << ", " << scale << ", " << step.name);
        const std::vector<std::string> words = step.command("runs");
        const auto found = std::find_if(subcommands().begin(), subcommands().end(),
                                        [&](const auto& c) { return c.name == words[0]; });
        REQUIRE(found != subcommands().end());
        const CommandBody body = found->make();
        CommonOptions common;
        data::Schema keys;
        body.describe(keys);
        common.describe(keys);
        CHECK(message([&] {
                apply_options("brine", {}, keys, {words.begin() + 1, words.end()});
              }) == "no error");
      }
    }
  }
  CHECK(files >= 4);
}

TEST_CASE("experiment: in pointers -1 is the last element of a list, and elsewhere a name") {
  const auto taken = [](const char* pointer, const char* text) {
    experiment::Step step;
    step.take = {{"y", pointer}};
    return experiment::values_of(step, text).at(0).at("y");
  };
  CHECK(taken("/a/-1/b", R"({"a": [{"b": 1}, {"b": 2}]})") == 2);
  CHECK(taken("/a/-1", R"({"a": {"-1": 3}})") == 3);
  CHECK(taken("/-10/-1/-1", R"({"-10": [1, [4, 5]]})") == 5);
  CHECK_THROWS_AS(taken("/a/-1", R"({"a": []})"), Error);
}

}  // namespace brine::tests
