// The run's log: JSON lines, the truncation by a resume, and the output on the terminal.
#include "distill/log/log.h"

#include <doctest/doctest.h>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/scratch.h"

namespace fs = std::filesystem;
using namespace brine;
using namespace brine::distill;
using nlohmann::json;

namespace {

std::vector<json> lines_of(const data::Path& path) {
  std::vector<json> lines;
  std::istringstream text(data::read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

int event_files_in(const data::Path& dir) {
  int n = 0;
  for (const auto& e : fs::directory_iterator(dir))
    n += e.path().filename().string().starts_with("events.out.tfevents.");
  return n;
}

// A clock that the test moves.
struct Clock {
  double time = 1000;
  std::function<double()> function() {
    return [this] { return time; };
  }
};

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("log: one complete line per call") {
  test::Scratch run;
  Clock clock;
  std::ostringstream terminal;
  data::Path dir = run / "deep/run";
  RunLog log(dir, terminal, {.progress = {.clock = clock.function()}});
  clock.time += 2;
  log.step({.step = 1,
            .total = 9,
            .tokens = 500,
            .values = {{"loss", 2.25}, {"kd", NAN}, {"prob", -INFINITY}}});
  auto lines = lines_of(dir / "log.jsonl");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["type"] == "step");
  CHECK(lines[0]["step"] == 1);
  CHECK(lines[0]["seconds"] == 2.0);
  CHECK(lines[0]["tokens_per_second"] == 250.0);
  CHECK(lines[0]["loss"] == 2.25);
  CHECK(lines[0]["kd"] == "nan");
  CHECK(lines[0]["prob"] == "-inf");
  CHECK(lines[0]["time"].get<double>() > 1.7e9);
  clock.time += 100;
  log.evaluation(1, {{"perplexity", 151.5}});
  log.event("saved \"x\"\n\xff");
  clock.time += 4;
  log.step({.step = 2, .total = 9, .tokens = 500, .values = {}});
  lines = lines_of(dir / "log.jsonl");
  REQUIRE(lines.size() == 4);
  CHECK(lines[1]["type"] == "evaluation");
  CHECK(lines[1]["perplexity"] == 151.5);
  CHECK(lines[2]["type"] == "event");
  CHECK(lines[2]["step"] == 1);
  CHECK(lines[2]["text"] == "saved \"x\"\n\xEF\xBF\xBD");
  CHECK(lines[3]["tokens_per_second"] == 125.0);  // the evaluation's time is not the step's
  CHECK(event_files_in(dir) == 1);
  CHECK_THROWS_AS(log.evaluation(1, {{"step", 1}}), Error);
}

TEST_CASE("log: a resume drops later and torn lines, a new run keeps the old log aside") {
  test::Scratch run;
  std::ostringstream terminal;
  auto write = [&](RunLog&& log, int from, int to) {
    for (int s = from; s <= to; ++s) log.step({.step = s, .total = 9, .values = {{"loss", s}}});
    log.event("end");
  };
  write(RunLog(run.path(), terminal), 1, 6);
  std::ofstream(run / "log.jsonl", std::ios::app) << "garbage\n{\"type\":\"step\",\"step\":";
  write(RunLog(run.path(), terminal, {.resume_step = 4}), 5, 7);
  std::string seen;
  for (const json& line : lines_of(run / "log.jsonl"))
    seen += line["type"].get<std::string>()[0] + line["step"].dump() + " ";
  CHECK(seen == "s1 s2 s3 s4 e4 s5 s6 s7 e7 ");
  CHECK(terminal.str().find("log.jsonl: dropped 1 unreadable lines") != std::string::npos);
  CHECK(event_files_in(run.path()) == 2);
  const std::string old = data::read_file(run / "log.jsonl");
  write(RunLog(run.path(), terminal), 1, 1);
  write(RunLog(run.path(), terminal), 1, 2);
  CHECK(data::read_file(run / "log.jsonl.1") == old);
  CHECK(lines_of(run / "log.jsonl.2").size() == 2);
  CHECK(lines_of(run / "log.jsonl").size() == 3);
  CHECK(trim_log(run / "none", 3) == 0);
}

TEST_CASE("log: a log that cannot be written is an error that names it") {
  test::Scratch run;
  std::ostringstream terminal;
  fs::create_symlink("/dev/full", run / "log.jsonl");
  RunLog log(run.path(), terminal, {.resume_step = 0});
  try {
    log.event("x");
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(std::string(e.what()) ==
          (run / "log.jsonl").string() + ": cannot write: the disk is full (errno 28)");
  }
  std::ofstream(run / "file") << "x";
  CHECK_THROWS_AS(RunLog(run / "file", terminal), Error);
}

TEST_CASE("progress: plain lines come at their interval, with rate and time left") {
  Clock clock;
  std::ostringstream out;
  Progress progress(out, {.every_seconds = 10, .every_steps = 8, .clock = clock.function()});
  for (int step = 1; step <= 20; ++step) {
    clock.time += 2;
    progress.step({.step = step, .total = 20, .tokens = 3000, .values = {{"loss", 3.5}}});
  }
  std::istringstream text(out.str());
  std::string line, seen;
  while (std::getline(text, line)) seen += line.substr(0, line.find("  ")) + ";";
  CHECK(seen == "step 1/20;step 6/20;step 8/20;step 13/20;step 16/20;step 20/20;");
  CHECK(out.str().starts_with("step 1/20  1.5 k tokens/s  loss 3.5  ETA 38.0 s\n"));
  CHECK(out.str().ends_with("step 20/20  1.5 k tokens/s  loss 3.5\n"));
  CHECK(out.str().find('\r') == std::string::npos);
}

TEST_CASE("progress: a line shows the mask that was counted last") {
  Clock clock;
  std::ostringstream out;
  Progress progress(out, {.clock = clock.function()});
  for (int step = 1; step <= 3; ++step) {
    clock.time += 10;
    progress.step({.step = step,
                   .values = {{"loss", 3.5}},
                   .mask = step == 2 ? Values{{"k", 7}, {"recall", 0.25}} : Values()});
  }
  CHECK(out.str() ==
        "step 1  loss 3.5\nstep 2  k 7, recall 0.25  loss 3.5\n"
        "step 3  k 7, recall 0.25  loss 3.5\n");
}

TEST_CASE("progress: the bar stays on one line of the terminal's width") {
  Clock clock;
  std::ostringstream out;
  {
    Progress progress(out, {.columns = 40, .clock = clock.function()});
    for (int step = 1; step <= 100; ++step) {
      clock.time += 0.03;
      progress.step({.step = step, .total = 100, .tokens = 10, .values = {{"loss", 1.0 / 3}}});
      if (step == 50) progress.line("evaluation");
    }
  }
  std::string text = out.str();
  CHECK(text.find("\r\x1b[K[==========          ] 50/100") == std::string::npos);  // not due
  CHECK(text.find("\r\x1b[K[====================] 100/100") != std::string::npos);
  CHECK(text.find("\r\x1b[Kevaluation\n") != std::string::npos);
  CHECK(count(text, "\n") == 2);
  int redraws = count(text, "\r\x1b[K");
  CHECK((redraws > 20 && redraws < 40));
  std::istringstream pieces(text);
  for (std::string piece; std::getline(pieces, piece, '\r');)
    CHECK(piece.substr(0, piece.find('\n')).size() <= 39 + 3);
}

TEST_CASE("progress: long times and values that are not finite are readable") {
  CHECK(describe_values({{"a", 0.000123456}, {"b", NAN}, {"c", INFINITY}, {"lr", 1e-4}}) ==
        "a 0.0001235, b nan, c inf, lr 0.0001");
  Clock clock;
  std::ostringstream out;
  Progress progress(out, {.every_seconds = 0, .clock = clock.function()});
  auto step = [&](int64_t at, int64_t total, double seconds) {
    out.str("");
    clock.time += seconds;
    progress.step({.step = at, .total = total});
    return out.str();
  };
  CHECK(step(1, 3701, 1).ends_with("ETA 1h01m\n"));
  CHECK(step(2, 200'002, 1).ends_with("ETA 2d07h\n"));
  CHECK(step(3, 0, 1) == "step 3  \n");
}
