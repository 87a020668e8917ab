// Tiny training runs in a directory, and what two of them must have in common.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/checkpoint/checkpoint.h"
#include "data/io/file_io.h"
#include "distill/trainer.h"
#include "tests/distill/setup.h"

namespace brine::test {

namespace fs = std::filesystem;
using Json = data::Json;

inline TrainerConfig six_steps() {
  TrainerConfig c;
  c.steps = 6;
  c.batch_size = 2;
  c.accumulate = 2;
  c.eval_every = 2;
  c.eval_windows = 3;
  c.save_every = 3;
  c.keep = 0;
  c.optimizer.learning_rate = 1e-3;
  c.optimizer.attention_learning_rate = 1e-2;
  c.schedule = {.schedule = nn::Decay::linear, .warmup_steps = 2};
  return c;
}

struct Ran {
  TrainOutcome outcome;
  std::string terminal;
};

// Runs a trainer in `dir`; with `resume` from the contents of the directory.
inline Ran run_in(const fs::path& dir, Trainer& trainer, bool resume) {
  fs::create_directories(dir);
  LogConfig log_config;
  if (resume) {
    trainer.resume();
    log_config.resume_step = trainer.step();
  }
  std::ostringstream terminal;
  RunLog log(dir, terminal, log_config);
  return {trainer.run(&log), terminal.str()};
}

// The same of a new student.
inline Ran train(const fs::path& dir, const Sizes& sizes, Teacher* teacher,
                 const TrainerConfig& config, bool resume = false, const LossConfig& losses = {},
                 const std::string& configuration = "{\"k\": 3}",
                 std::function<double()> seconds = {}) {
  Pair pair(sizes);
  TrainerParts parts = parts_of(pair, teacher, config, losses);
  parts.valid = std::make_unique<WindowSource>(pair.source(0));
  Trainer trainer(parts, {.run_dir = dir.string(),
                          .configuration = configuration,
                          .seed = 11,
                          .seconds = std::move(seconds)});
  return run_in(dir, trainer, resume);
}

inline std::unique_ptr<Teacher> online(const Sizes& sizes) {
  return std::make_unique<OnlineTeacher>(Pair(sizes).teacher);
}

inline std::string file(const fs::path& dir, int64_t step, const char* name) {
  return data::read_file(data::checkpoint_path(dir, step) / name);
}

// What a run logged, without times, and the masks, which are counted by time.
inline std::vector<std::string> log_lines(const fs::path& dir) {
  std::istringstream in(data::read_file(dir / "log.jsonl"));
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) {
    Json json = Json::parse(line);
    for (const char* key :
         {"time", "seconds", "tokens_per_second", "k", "columns", "recall", "kept_share"})
      json.erase(key);
    out.push_back(json.dump());
  }
  return out;
}

inline void check_same_run(const fs::path& a, const fs::path& b, int64_t step) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    CHECK_MESSAGE((file(a, step, name) == file(b, step, name)), name << " differs");
  }
  Json x = Json::parse(file(a, step, "trainer.json")),
       y = Json::parse(file(b, step, "trainer.json"));
  x.erase("seconds");
  y.erase("seconds");
  CHECK(x == y);
  const std::vector<std::string> lines = log_lines(a), others = log_lines(b);
  REQUIRE(lines.size() == others.size());
  for (size_t i = 0; i < lines.size(); ++i) CHECK(lines[i] == others[i]);
}

// A run directory as it was when a process was killed after the checkpoint of step 3.
inline void copy_killed(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  fs::copy(data::checkpoint_path(from, 3), data::checkpoint_path(to, 3),
           fs::copy_options::recursive);
  std::string log = data::read_file(from / "log.jsonl");
  data::write_file_atomic(to / "log.jsonl", log.substr(0, log.size() - 20));  // a torn line
}

}  // namespace brine::test
