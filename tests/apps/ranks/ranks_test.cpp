// Training on several ranks: the bits of one process, ends of ranks, refusals.
#include "tests/apps/ranks/training.h"

namespace brine::tests {
namespace {

void same_bits(const Launcher& launcher) {
  const std::string id = launcher.id;
  for (const int slots : {4, 7, 8}) {
    const std::string keys = kTrain + join("--steps 3 --eval-every 2 --save-every 2 --accumulate ",
                                           slots, " --out ", id, "-", slots, "-");
    must_run(keys + "alone", "OMP_NUM_THREADS=1");
    // Ranks and threads; eight ranks on every machine.
    const std::vector<std::pair<int, int>> counts =
        slots == 8 ? std::vector<std::pair<int, int>>{{2, 2}, {8, 1}, {8, 2}}
                   : std::vector<std::pair<int, int>>{{1, 2}, {2, 1}, {3, 2}, {4, 1}};
    for (const auto& [ranks, threads] : counts) {
      const std::string name = join(ranks, "-", threads);
      must_run(keys + name, launcher.of(ranks, threads));
      check_same(join(id, "-", slots, "-", name), join(id, "-", slots, "-alone"));
    }
  }
}

// A dump's reader runs ahead in the order of the batches of its rank.
void same_students(const Launcher& launcher) {
  const std::map<std::string, std::string> runs = {
      {"dump", World::distill("--steps 3 --columns 12 --k 4 --accumulate 4") + " --dump dump"},
      {"online", World::distill("--steps 2 --columns 12 --k 4 --accumulate 4 --compute bf16")},
      {"stages",
       "distill --teacher teacher --data text.txt --batch-size 2 --steps 3 --joint-steps 2 "
       "--accumulate 4 --stages attention,joint --attention sea --columns 12 --k 4"},
      {"blocks",
       "distill --teacher teacher --data text.txt --joint.batch-size 2 --joint-steps 2 "
       "--accumulate 4 --stages attention,joint --attention blocks --k 16 --block 4 --tile 2"}};
  for (const auto& [name, command] : runs) {
    const std::string keys = command + " --valid text.txt --keep 0 --out ";
    const std::string run = launcher.id + "-" + name;
    must_run(keys + run, "");
    for (const int ranks : {2, 3}) {
      must_run(keys + join(run, ranks), launcher.of(ranks));
      check_same(join(run, ranks), run);
    }
  }
}

void killed(const Launcher& launcher) {
  const std::string whole = launcher.id + "-whole";
  must_run(long_run(whole), "OMP_NUM_THREADS=1");
  for (const int victim : {0, 1, 2}) {
    const std::string out = join(launcher.id, "-killed-", victim);
    const Finished done =
        disturbed(launcher, long_run(out), out, [&] { ::kill(process_of(victim), SIGKILL); });
    CHECK(done.status != 0);
    if (victim != 1) check_resumes(launcher, out, whole);
  }
  const std::string out = launcher.id + "-stopped";
  const Finished done =
      disturbed(launcher, long_run(out), out, [&] { ::kill(process_of(2), SIGTERM); });
  CHECK(done.status == 130);
  CHECK(contains(done.error, "SIGTERM to rank 2: saving at step"));
  CHECK(contains(done.error, "interrupted after "));
  check_resumes(launcher, out, whole);
}

void limited(const Launcher& launcher) {
  const std::string out = launcher.id + "-limited";
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
  const std::string out = " --out " + launcher.id + "-refused";
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
  CHECK(!std::filesystem::exists(world().path(launcher.id + "-refused")));
}

RANKS_TEST_CASE("ranks: 1 to 8 ranks, 1 and 2 threads have the same bits", same_bits)
RANKS_TEST_CASE("ranks: students of a dump, of a teacher, and of both stages", same_students)
RANKS_TEST_CASE("ranks: a rank that is killed or told to stop ends all; any number resumes", killed)
RANKS_TEST_CASE("ranks: one that does not answer is named", limited)
RANKS_TEST_CASE("ranks: too many, other settings, an error of one", refused)

TEST_CASE("ranks: processes that were started without MPI are refused") {
  for (const char* launch : {"RANK=1 WORLD_SIZE=2", "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2"}) {
    const Finished done = world().run(std::string(kTrain) + "--out nothing", launch);
    CHECK(done.status == 1);
    const bool says =
        contains(done.error, "start them with mpirun, or with srun --mpi=pmix or pmi2");
    CHECK(says == (launch[0] == 'S'));  // the first rank reports
  }
  CHECK(
      world().run(std::string(kTrain) + "--dry-run --out nothing", "RANK=0 WORLD_SIZE=1").status ==
      0);
}

}  // namespace
}  // namespace brine::tests
