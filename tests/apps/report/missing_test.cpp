// What brine report says is missing: its commands have the paths that were given and run as they
// are, on models that keep every key too.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/apps/report/page.h"
#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;

// The commands of a page by the beginning of what is missing.
std::map<std::string, std::string> commands_in(const std::string& page) {
  std::map<std::string, std::string> out;
  const Json data = page_data(page);
  for (const Json& each : data.at("missing")) {
    const std::string what = each.at("what");
    out[what.substr(0, what.find(':'))] = each.at("command");
  }
  return out;
}

// Pastes a command into a shell whose `brine` is the program under test.
void paste(const std::string& command) {
  CAPTURE(command);
  const std::string line = "cd " + world().path("") + " && export OMP_WAIT_POLICY=passive && " +
                           "brine() { " + program() + " \"$@\"; } && { " + command +
                           "; } >pasted.out 2>&1";
  const int status =
      std::system(("bash -c '" + std::regex_replace(line, std::regex("'"), "'\\''") + "'").c_str());
  CHECK_MESSAGE(status == 0, read_all(world().path("pasted.out")));
}

}  // namespace

TEST_CASE("report: commands for what is missing have the given paths, and run (a student)") {
  const World& w = world();
  for (const char* old : {"capture.h5", "sweep.tsv"}) fs::remove(w.path(old));
  auto commands = commands_in(written("student"));
  CHECK(commands["Maps of attention and mask health"] ==
        "brine report student --data text.txt --sequence-length 32 --out page.html");
  CHECK(commands["Maps of an earlier pass"] ==
        "brine inspect student --capture capture.h5 --data text.txt --sequence-length 32 && "
        "brine report capture.h5");
  // The teacher is that of the run; k is around the one that was trained.
  CHECK(commands["k against perplexity and recall"] ==
        "brine sweep --model student --teacher teacher --floors --data text.txt --sequence-length "
        "32 --k 2 4 8 16 --out sweep.tsv && brine report student sweep.tsv --out page.html");
  paste(commands["Maps of attention and mask health"]);
  CHECK(page_data(read_all(w.path("page.html"))).at("attention")[0].count("recall") == 1);
  paste(commands["Maps of an earlier pass"]);
  CHECK(fs::exists(w.path("capture.h5")));
  paste(commands["k against perplexity and recall"]);
  chart_of(page_data(read_all(w.path("page.html"))), "sweep-sweep-perplexity");
  // Files are not replaced: the next command has other names.
  commands = commands_in(written("student"));
  CHECK(contains(commands["Maps of an earlier pass"], "--capture capture-2.h5"));
  CHECK(contains(commands["k against perplexity and recall"], "--out sweep-2.tsv"));
}

TEST_CASE("report: commands for what is missing have the flags that were given") {
  const World& w = world();
  fs::remove(w.path("sweep.tsv"));
  auto commands =
      commands_in(written("student --data text.txt --window 1 --sequence-length 16 --teacher "
                          "teacher --layers 1 --k 3"));
  CHECK(commands.count("Maps of attention and mask health") == 0);
  CHECK(contains(commands["k against perplexity and recall"],
                 "--data text.txt --sequence-length 16 --k"));
  CHECK(
      contains(commands["k against perplexity and recall"],
               "&& brine report student sweep.tsv --data text.txt --window 1 --sequence-length 16 "
               "--teacher teacher --k 3 --layers 1 --out page.html"));
  // A text with a quote; its two tokens need a smaller k.
  commands = commands_in(written("student --text 'the it'\\''s' --k 30"));
  const std::string smaller = commands["Mask health"];
  CHECK(contains(smaller, "brine report student --text 'the it'\\''s' --k "));
  paste(smaller);
  CHECK(page_data(read_all(w.path("page.html"))).at("attention")[0].count("recall") == 1);
  // A capture's model is in the file.
  fs::remove(w.path("of.h5"));
  w.must("inspect student --capture of.h5 --text 'the king said unto his people'");
  commands = commands_in(written("of.h5"));
  CHECK(contains(commands["k against perplexity and recall"], "brine sweep --model "));
  CHECK_FALSE(contains(commands["k against perplexity and recall"], "MODEL"));
}

TEST_CASE(
    "report: a model that keeps every key is suggested a conversion, and no sweep of its own") {
  const World& w = world();
  fs::remove_all(w.path("teacher-sea"));
  fs::remove(w.path("sweep.tsv"));
  fs::remove(w.path("capture.h5"));
  auto commands = commands_in(written("teacher"));
  paste(commands["Maps of attention and mask health"]);
  paste(commands["Maps of an earlier pass"]);
  const std::string trade = commands["k against perplexity and recall"];
  CHECK_FALSE(contains(trade, "--model teacher "));
  CHECK(contains(trade,
                 "brine convert --teacher teacher --data text.txt --out teacher-sea && "
                 "brine sweep --model teacher-sea --teacher teacher --floors "));
  // The same with few steps, as the default has many.
  paste(std::regex_replace(trade, std::regex("--out teacher-sea"), "--out teacher-sea --steps 2"));
  chart_of(page_data(read_all(w.path("page.html"))), "sweep-sweep-perplexity");
  commands = commands_in(written(std::string("teacher ") + kText));
  CHECK(contains(commands["Mask health"],
                 "brine convert --teacher teacher --data text.txt --out "
                 "teacher-sea-2 && brine report teacher-sea-2 --teacher "
                 "teacher --text 'the king"));
}

TEST_CASE("report: a run without a checkpoint is trained again, a method without k has no sweep") {
  const World& w = world();
  fs::remove_all(w.path("only-log"));
  fs::create_directories(w.path("only-log"));
  for (const char* file : {"log.jsonl", "config.toml"})
    fs::copy_file(w.path(std::string("student/") + file), w.path(std::string("only-log/") + file));
  auto commands = commands_in(written("only-log"));
  CHECK(commands["Maps of attention and mask health"] ==
        "brine distill --config only-log/config.toml && brine report only-log --data TEXT "
        "--sequence-length 1024");
  fs::remove_all(w.path("linear"));
  w.must(
      "distill --teacher teacher --data text.txt --batch-size 2 --steps 1 --attention performer "
      "--out linear");
  commands = commands_in(written(std::string("linear ") + kText));
  CHECK(commands["Mask health"] == "");
  CHECK(commands["k against perplexity and recall"] == "");
}

TEST_CASE("report: an empty text is refused in one line") {
  check_says(refusal("student --text ''"), {"--text", "empty"});
  check_says(refusal("student --tokens ''"), {"--tokens", "empty"});
  check_says(refusal("student --data ''"), {"--data", "empty"});
  const Finished f = world().run("inspect student --capture empty.h5 --text ''");
  CHECK(f.status == 1);
  check_says(f.error, {"--text", "empty"});
}

}  // namespace brine::tests
