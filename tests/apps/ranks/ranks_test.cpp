// Training on several ranks: the bits of one process, ends of ranks, refusals.
#include "tests/apps/ranks/launch.h"

namespace brine::tests {
namespace {

const char* const kTrain =
    "train --config model.toml --tokenizer tok --train text.txt --valid text.txt --keep 0 "
    "--model.dropout 0.1 ";

void must_run(const std::string& arguments, const std::string& before) {
  const Finished done = ranked_world().run(arguments, before);
  REQUIRE_MESSAGE(done.status == 0, before << arguments << ": " << done.error);
}

void same_bits(const Launcher& launcher) {
  const std::string& id = launcher.name;
  for (const int slots : {4, 7}) {
    const std::string keys = kTrain + join("--steps 3 --eval-every 2 --save-every 2 --accumulate ",
                                           slots, " --out ", id, "-", slots, "-");
    must_run(keys + "alone", "OMP_NUM_THREADS=1");
    for (const int ranks : {1, 2, 3, 4}) {
      const int threads = ranks % 2 ? 2 : 1;
      must_run(keys + std::to_string(ranks), launcher.of(ranks, threads));
      check_same(join(id, "-", slots, "-", ranks), join(id, "-", slots, "-alone"));
      if (ranks == 1) continue;
      must_run(keys + std::to_string(ranks) + "z --zero", launcher.of(ranks));
      check_same(join(id, "-", slots, "-", ranks, "z"), join(id, "-", slots, "-alone"));
    }
  }
}

// A dump's reader runs ahead in the order of its own rank's batches.
void same_students(const Launcher& launcher) {
  const std::map<std::string, std::string> runs = {
      {"dump", World::distill("--steps 3 --columns 12 --k 4 --accumulate 4") + " --dump dump"},
      {"online", World::distill("--steps 2 --columns 12 --k 4 --accumulate 4 --compute bf16")},
      {"f16", World::distill("--steps 4 --columns 12 --k 4 --accumulate 4 --compute f16")},
      {"convert",
       "convert --teacher teacher --data text.txt --batch-size 2 --steps 3 --joint-steps 2 "
       "--accumulate 4 --stages attention,joint --columns 12 --k 4"}};
  for (const auto& [name, command] : runs) {
    const std::string keys = command + " --valid text.txt --keep 0 --out ";
    const std::string run = launcher.name + "-" + name;
    must_run(keys + run, "");
    for (const int ranks : {2, 3}) {
      must_run(keys + join(run, ranks), launcher.of(ranks));
      check_same(join(run, ranks), run);
    }
  }
}

constexpr int kLong = 240;
std::string long_run(const std::string& out, int rank_seconds = 20) {
  return kTrain + join("--steps ", kLong, " --save-every 20 --eval-every ", kLong,
                       " --accumulate 4 --rank-seconds ", rank_seconds, " --out ", out);
}

// Starts the long run on three ranks, waits for its first checkpoint, calls `disturb` and returns
// how the launcher ended.
Finished disturbed(const Launcher& launcher, const std::string& arguments, const std::string& out,
                   const std::function<void()>& disturb) {
  for (int r = 0; r < 3; ++r) std::filesystem::remove(ranked_world().path(join("pid.", r)));
  Finished done;
  std::thread launched([&] { done = ranked_world().run(arguments, launcher.of(3)); });
  const std::filesystem::path first = world().path(out + "/step-00000020/manifest.json");
  const bool began = wait_until(60, [&] { return std::filesystem::exists(first); });
  if (began) disturb();
  launched.join();
  CHECK_MESSAGE(began, done.error);
  const bool gone = wait_until(20, [] {
    return !is_alive(process_of(0)) && !is_alive(process_of(1)) && !is_alive(process_of(2));
  });
  CHECK(gone);
  return done;
}

void check_resumes(const Launcher& launcher, const std::string& out, const std::string& expected) {
  for (const int ranks : {1, 3}) {
    const std::string copy = join(out, "-resumed-", ranks);
    std::filesystem::copy(world().path(out), world().path(copy),
                          std::filesystem::copy_options::recursive);
    must_run(long_run(copy) + " --resume --zero", launcher.of(ranks));
    std::map<std::string, std::string> a = traces_of(copy), b = traces_of(expected);
    const std::string last = join("step-00000", kLong, "/");
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer.json"}) {
      INFO(copy, " ", file);
      const bool same = !b[last + file].empty() && a[last + file] == b[last + file];
      CHECK(same);
    }
  }
}

void killed(const Launcher& launcher) {
  const std::string whole = launcher.name + "-whole";
  must_run(long_run(whole), "OMP_NUM_THREADS=1");
  for (const int victim : {0, 1, 2}) {
    const std::string out = join(launcher.name, "-killed-", victim);
    const Finished done =
        disturbed(launcher, long_run(out), out, [&] { ::kill(process_of(victim), SIGKILL); });
    CHECK(done.status != 0);
    if (victim != 1) check_resumes(launcher, out, whole);
  }
  const std::string out = launcher.name + "-stopped";
  const Finished done =
      disturbed(launcher, long_run(out), out, [&] { ::kill(process_of(2), SIGTERM); });
  CHECK(done.status == 130);
  CHECK(contains(done.error, "SIGTERM to rank 2: saving at step"));
  CHECK(contains(done.error, "interrupted at step"));
  check_resumes(launcher, out, whole);
}

void limited(const Launcher& launcher) {
  const std::string out = launcher.name + "-limited";
  const Finished done = disturbed(launcher, long_run(out, 1), out, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(process_of(1), SIGSTOP);
  });
  CHECK(done.status != 0);
  INFO(done.error);
  CHECK(contains(done.error, "no answer from rank 1 within "));
  CHECK((contains(done.error, "rank 0: brine train: ") ||
         contains(done.error, "rank 2: brine train: ")));
}

void refused(const Launcher& launcher) {
  const std::string out = " --out " + launcher.name + "-refused";
  Finished done = ranked_world().run(kTrain + out + " --accumulate 2", launcher.of(3));
  CHECK(done.status != 0);
  CHECK(contains(done.error, "brine train: 3 ranks for steps of 2 micro-batches; start fewer"));
  done = ranked_world().run(kTrain + out + " --accumulate 4 : -n 1 sh rank.sh " + program() + " " +
                                kTrain + out + " --accumulate 4 --learning-rate 0.5",
                            launcher.of(2));
  CHECK(done.status != 0);
  CHECK(contains(done.error,
                 "rank 2 has another configuration than rank 0; optimizer.learning_rate"));
  // An error of one rank before the ranks are connected.
  done = ranked_world().run(kTrain + out + " --accumulate 4 : -n 1 sh rank.sh " + program() + " " +
                                kTrain + out + " --no-such-key 1",
                            launcher.of(1));
  CHECK(done.status != 0);
  CHECK(contains(done.error, "rank 1: brine train: "));
  CHECK(!std::filesystem::exists(world().path(launcher.name + "-refused")));
}

void for_launcher(const Launcher& launcher, void (*test)(const Launcher&)) {
  if (!launcher.found()) return test::skip("no " + launcher.name);
  test(launcher);
}

TEST_CASE("ranks: 1 to 4 ranks, 1 and 2 threads have the same bits (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), same_bits);
}
TEST_CASE("ranks: 1 to 4 ranks, 1 and 2 threads have the same bits (needs MPICH)") {
  for_launcher(mpich_launcher(), same_bits);
}
TEST_CASE("ranks: students of a dump, of a teacher, and of both stages (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), same_students);
}
TEST_CASE("ranks: students of a dump, of a teacher, and of both stages (needs MPICH)") {
  for_launcher(mpich_launcher(), same_students);
}
TEST_CASE(
    "ranks: a rank that is killed or told to stop ends all; any number resumes (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), killed);
}
TEST_CASE(
    "ranks: a rank that is killed or told to stop ends all; any number resumes (needs MPICH)") {
  for_launcher(mpich_launcher(), killed);
}
TEST_CASE("ranks: one that does not answer is named (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), limited);
}
TEST_CASE("ranks: one that does not answer is named (needs MPICH)") {
  for_launcher(mpich_launcher(), limited);
}
TEST_CASE("ranks: too many, other settings, an error of one (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), refused);
}
TEST_CASE("ranks: too many, other settings, an error of one (needs MPICH)") {
  for_launcher(mpich_launcher(), refused);
}

TEST_CASE("ranks: processes that were started without MPI are refused") {
  for (const char* launch : {"RANK=1 WORLD_SIZE=2", "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2"}) {
    const Finished done = world().run(std::string(kTrain) + "--out nothing", launch);
    CHECK(done.status == 1);
    const bool says = contains(done.error, "start them with mpirun, or with srun --mpi=pmix");
    CHECK(says == (launch[0] == 'S'));  // the first rank reports
  }
  CHECK(
      world().run(std::string(kTrain) + "--dry-run --out nothing", "RANK=0 WORLD_SIZE=1").status ==
      0);
}

}  // namespace
}  // namespace brine::tests
