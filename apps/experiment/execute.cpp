// Processes of this program, their output in files.
#include "apps/experiment/execute.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/bench/report.h"
#include "data/checkpoint/checkpoint.h"
#include "data/io/file_io.h"

namespace brine::experiment {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A process with its standard output and error in files. It gets SIGTERM when this one dies.
class Process {
 public:
  Process(const std::vector<std::string>& words, const fs::path& out, const fs::path& log) {
    std::vector<std::string> all = {"brine"};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& word : all) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int stdout_file = opened(out), stderr_file = opened(log);
    const pid_t parent = getpid();
    id_ = fork();
    if (id_ == 0) {
      // Only what is safe between fork and exec.
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(127);  // it died before the line above
      dup2(stdout_file, 1);
      dup2(stderr_file, 2);
      // This file, even if another one has its name by now: rows carry this program's commit.
      execv("/proc/self/exe", argv.data());
      _exit(127);
    }
    close(stdout_file);
    close(stderr_file);
    check(id_ > 0, "experiment: no further process (errno ", errno, ")");
  }

  // The exit status, 128 + the signal that ended it, or -1 while it runs.
  int status() const {
    int state = 0;
    if (waitpid(id_, &state, WNOHANG) == 0) return -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }
  void stop() const { kill(id_, SIGTERM); }

 private:
  static int opened(const fs::path& path) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) data::throw_io(path, "write", errno);
    return file;
  }

  pid_t id_ = -1;
};

struct Running {
  const Step* step;
  std::string command;
  Process process;
  Clock::time_point start;
};

std::string last_line(const fs::path& log) {
  std::ifstream in(log);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? "" : ": " + last;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out = "brine";
  for (const std::string& word : words) {
    const bool plain = word.find_first_of(" '\"$&|;<>()*?\\") == word.npos;
    out += plain ? " " + word : " '" + word + "'";
  }
  return out;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

// The seed of a step: its axis, a flag of its command, or the program's default.
int64_t seed_of(const Step& step) {
  if (const auto axis = step.axes.find("seed"); axis != step.axes.end()) {
    return std::atoll(axis->second.c_str());
  }
  const std::vector<std::string>& words = step.words;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--seed") return std::atoll(words[i + 1].c_str());
  }
  return 1;
}

class Executor {
 public:
  Executor(const Plan& plan, Rows& rows, const Execution& how)
      : plan_(plan), rows_(rows), how_(how), runs_((how.directory / "runs").string()) {
    fs::create_directories(runs_);
    fs::create_directories(how.directory / "logs");
  }

  bool run() {
    size_t done = 0;
    for (const Step& step : plan_.steps) {
      ++done;
      if (!rows_.of(step).empty()) continue;
      while (!running_.empty() &&
             (int64_t(running_.size()) >= how_.jobs || running_.front().step->id != step.id)) {
        if (!wait()) return false;
      }
      if (how_.stopped()) return finish();
      how_.say(join("[", done, "/", plan_.steps.size(), "] ", step.name));
      begin(step);
    }
    return finish();
  }

 private:
  void begin(const Step& step) {
    if (step.lines.empty()) {
      start(step);
    } else {
      keep(step, data::read_file(with_runs(step.lines, runs_), 1 << 30), "", 0);
    }
  }

  fs::path log(const Step& step, const char* kind) const {
    return how_.directory / "logs" / (step.name + kind);
  }

  void start(const Step& step) {
    std::vector<std::string> words = step.command(runs_);
    const bool begun = !data::list_checkpoints(fs::path(runs_) / step.name).empty();
    if (step.makes_directory() && begun) words.push_back("--resume");
    words.insert(words.end(), {"--threads", std::to_string(how_.threads)});
    running_.push_back({.step = &step,
                        .command = joined(words),
                        .process = Process(words, log(step, ".json"), log(step, ".log")),
                        .start = Clock::now()});
  }

  // Until one process has ended. -> false when the experiment is to stop: then all have ended.
  bool wait() {
    for (;;) {
      for (size_t i = 0; i < running_.size(); ++i) {
        const int status = running_[i].process.status();
        if (status < 0) continue;
        const Running ended = running_[i];
        running_.erase(running_.begin() + int64_t(i));
        if (status != 0 && how_.stopped()) return stop();
        end(ended, status);
        return true;
      }
      if (how_.stopped()) return stop();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  bool stop() {
    for (const Running& one : running_) one.process.stop();
    for (const Running& one : running_) {
      while (one.process.status() < 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    running_.clear();
    return false;
  }

  bool finish() {
    while (!running_.empty()) {
      if (!wait()) return false;
    }
    return !how_.stopped();
  }

  void end(const Running& run, int status) {
    const Step& step = *run.step;
    if (status != 0) {
      stop();
      throw Error(join("experiment: ", step.name, " ended with status ", status, "; ",
                       log(step, ".log").string(), last_line(log(step, ".log"))));
    }
    keep(step, step.makes_directory() ? "" : data::read_file(log(step, ".json"), 1 << 28),
         run.command, std::chrono::duration<double>(Clock::now() - run.start).count());
  }

  void keep(const Step& step, const std::string& output, const std::string& command,
            double seconds) {
    std::vector<Row> values = {Row::object()};
    if (!step.makes_directory()) values = values_of(step, output);
    std::vector<Row> rows;
    for (const Row& value : values) {
      rows.push_back({{"experiment", plan_.name},
                      {"scale", plan_.scale},
                      {"step", step.id},
                      {"name", step.name},
                      {"axes", step.axes},
                      {"values", value},
                      {"command", command},
                      {"definition", step.definition()},
                      {"commit", how_.commit},
                      {"seed", seed_of(step)},
                      {"machine", machine_name(how_.threads)},
                      {"seconds", seconds},
                      {"date", today()}});
    }
    rows_.add(rows);
  }

  const Plan& plan_;
  Rows& rows_;
  const Execution& how_;
  std::string runs_;
  std::vector<Running> running_;
};

}  // namespace

bool execute(const Plan& plan, Rows& rows, const Execution& how) {
  return Executor(plan, rows, how).run();
}

std::string machine_name(int64_t threads) {
  const std::string name = bench::cpu_model(data::read_file("/proc/cpuinfo", 1 << 24));
  return join(name, ", ", threads, " threads");
}

}  // namespace brine::experiment
