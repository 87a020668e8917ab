// Runs of the program under launchers, and what two of them must have in common.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/io/json.h"
#include "tests/apps/world.h"
#include "tests/skip.h"

namespace brine::tests {

struct Launcher {
  std::string name, command, id;

  bool found() const { return std::system(("command -v " + name + " >/dev/null").c_str()) == 0; }
  // The words ahead of the program's; more ranks than cores, which rank.sh records.
  std::string of(int ranks, int threads = 1) const {
    return "OMP_NUM_THREADS=" + std::to_string(threads) + " timeout 120 " + command + " -n " +
           std::to_string(ranks) + " sh rank.sh ";
  }
};

inline Launcher open_mpi_launcher() {
  return {"mpirun.openmpi",
          "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --quiet", "open-mpi"};
}
inline Launcher mpich_launcher() { return {"mpirun.mpich", "mpirun.mpich", "mpich"}; }
inline void for_launcher(const Launcher& launcher, void (*test)(const Launcher&)) {
  if (!launcher.found()) return test::skip("no " + launcher.name);
  test(launcher);
}

// A case for each of both libraries.
#define RANKS_TEST_CASE(name, test)                                                \
  TEST_CASE(name " (needs Open MPI)") { for_launcher(open_mpi_launcher(), test); } \
  TEST_CASE(name " (needs MPICH)") { for_launcher(mpich_launcher(), test); }

// Every rank writes its process number to pid.RANK, so that a test can find it.
inline const World& ranked_world() {
  world().write("rank.sh",
                "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"
                "echo $$ > pid.$rank.new\n"
                "mv pid.$rank.new pid.$rank\n"
                "exec \"$@\"\n");
  return world();
}

inline int process_of(int rank) {
  const std::string text = read_all(ranked_world().path("pid." + std::to_string(rank)));
  return text.empty() ? 0 : std::stoi(text);
}
inline bool is_alive(int process) { return process > 0 && ::kill(process, 0) == 0; }

template <class F>
bool wait_until(double seconds, F done) {
  const auto begin = std::chrono::steady_clock::now();
  while (!done()) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (waited.count() > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline Finished must_run(const std::string& arguments, const std::string& before) {
  Finished done = ranked_world().run(arguments, before);
  REQUIRE_MESSAGE(done.status == 0, before << arguments << ": " << done.error);
  return done;
}

// What a run writes, without times: by file, or by the line of the log.
inline std::map<std::string, std::string> traces_of(const std::string& run) {
  namespace fs = std::filesystem;
  std::map<std::string, std::string> out;
  const fs::path root = world().path(run);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string name = fs::relative(entry.path(), root).string();
    if (!entry.is_regular_file() || name.find("step-") != 0) continue;
    out[name] = read_all(entry.path());
    if (name.ends_with("manifest.json")) out.erase(name);  // has the hash of trainer.json
    if (!name.ends_with("trainer.json")) continue;
    nlohmann::json state = parse_json(out[name]);
    state.erase("seconds");
    out[name] = state.dump();
  }
  std::istringstream log(read_all(root / "log.jsonl"));
  for (std::string line; std::getline(log, line);) {
    nlohmann::json values = parse_json(line);
    if (values.at("type") == "event") continue;
    for (const char* key : {"time", "seconds", "tokens_per_second"}) values.erase(key);
    out["log " + values.at("type").get<std::string>() + " " + values.at("step").dump()] =
        values.dump();
  }
  return out;
}

inline void check_same(const std::string& run, const std::string& expected) {
  const auto a = traces_of(run), b = traces_of(expected);
  CHECK(b.size() > 4);
  CHECK(a.size() == b.size());
  for (const auto& [name, content] : b) {
    INFO(run, " against ", expected, ": ", name);
    const auto found = a.find(name);
    const bool same = found != a.end() && found->second == content;
    CHECK(same);
  }
}

}  // namespace brine::tests
