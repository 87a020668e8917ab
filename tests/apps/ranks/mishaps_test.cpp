// Processes that no MPI launcher started, and what goes wrong on one rank: one line
// that names it, and nothing lost.
#include <sys/resource.h>

#include "tests/apps/ranks/training.h"

namespace brine::tests {
namespace {

TEST_CASE("ranks: processes that only variables connect have the same bits (needs MPICH)") {
  for_launcher(plain_launcher(), [](const Launcher& launcher) {
    const std::string keys =
        kTrain + std::string("--steps 3 --eval-every 2 --save-every 2 --accumulate 4 --out plain-");
    must_run(keys + "alone", "OMP_NUM_THREADS=1");
    for (const int ranks : {2, 3}) {
      const Finished done = ranked_world().run(keys + join(ranks), launcher.of(ranks, ranks - 1));
      REQUIRE_MESSAGE(done.status == 0, done.error);
      CHECK(contains(done.error, join(ranks, " ranks by MPICH")));
      check_same(join("plain-", ranks), "plain-alone");
    }
  });
}

// No launcher ends the others, and the limit is far away: they notice it by themselves.
TEST_CASE("ranks: processes that only variables connect end with one of them (needs MPICH)") {
  for_launcher(plain_launcher(), [](const Launcher& launcher) {
    const std::string whole = "plain-whole";
    must_run(long_run(whole), "OMP_NUM_THREADS=1");
    for (const int victim : {0, 2}) {
      const std::string out = join("plain-killed-", victim);
      const Finished done = disturbed(launcher, long_run(out, 500), out,
                                      [&] { ::kill(process_of(victim), SIGKILL); });
      CHECK(done.status != 0);
      CHECK(done.status != 124);  // of `timeout`: they did not end by themselves
      INFO(done.error);
      CHECK(contains(done.error, join(": rank ", victim, " has ended\n")));
      check_resumes(launcher, out, whole);
    }
  });
}

TEST_CASE("ranks: processes that only variables connect: refusals (needs MPICH)") {
  for_launcher(plain_launcher(), [](const Launcher& launcher) {
    // An error of one before they are connected: the others do not wait for the limit.
    ranked_world().write("one.sh", "[ $RANK = 1 ] && set -- \"$@\" --no-such-key 1\nexec \"$@\"\n");
    Finished done = ranked_world().run(
        kTrain + std::string("--accumulate 4 --rank-seconds 300 --out plain-refused"),
        launcher.of(3) + "sh one.sh");
    CHECK(done.status == 1);
    INFO(done.error);
    CHECK(contains(done.error, "rank 1: brine train: unknown"));
    CHECK(contains(done.error, "rank 1 has ended"));
    done = ranked_world().run(kTrain + std::string("--out plain-refused"),
                              "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=65535");
    CHECK(done.error == "rank 0: brine train: ranks: MASTER_PORT + 1 is 65536, not a port\n");
    done = ranked_world().run(
        kTrain + std::string("--rank-seconds 0.1 --out plain-refused"),
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 BRINE_MASTER_PORT=9 timeout 100");
    CHECK(
        done.error ==
        "rank 1: brine train: rendezvous at 127.0.0.1:9: rank 0 was not there within 0.1 seconds: "
        "Connection refused\n");
    CHECK(!std::filesystem::exists(world().path("plain-refused")));
  });
}

// Each rank with addresses, devices and a host name of its own.
TEST_CASE("ranks: processes in two network namespaces have the bits of one (needs MPICH)") {
  for_launcher(plain_launcher(), [](const Launcher&) {
    const std::string log = world().path("namespaces.log");
    const int code =
        std::system(("timeout 120 " + test::source_dir() + "/scripts/ranks-in-namespaces " +
                     test::binary_dir() + " >" + log + " 2>&1")
                        .c_str());
    if (WEXITSTATUS(code) == 77) return test::skip("network namespaces cannot be made");
    CHECK_MESSAGE(WEXITSTATUS(code) == 0, read_all(log));
    CHECK(contains(read_all(log), "2 ranks by MPICH"));
  });
}

// By PMIx, by PMI-2 and by variables; stopped by a signal of Slurm, and resumed.
TEST_CASE("ranks: jobs of Slurm have the bits of one process (needs Slurm)") {
  const std::string log = world().path("slurm.log");
  const int code = std::system(("timeout 300 " + test::source_dir() + "/scripts/ranks-in-slurm " +
                                test::binary_dir() + " >" + log + " 2>&1")
                                   .c_str());
  if (WEXITSTATUS(code) == 77) return test::skip("no Slurm");
  CHECK_MESSAGE(WEXITSTATUS(code) == 0, read_all(log));
  for (const char* way : {"pmix", "pmi2", "none"})
    CHECK(contains(read_all(log), join("srun --mpi=", way, ", 3 ranks: the bits of one process")));
  CHECK(contains(read_all(log), "stopped by Slurm and resumed: the bits of one process"));
}

// A directory of one rank's own, as on a machine that does not share the others' files.
void make_odd_directory() {
  namespace fs = std::filesystem;
  const fs::path odd = world().path("odd");
  if (fs::exists(odd)) return;
  fs::create_directory(odd);
  for (const char* name : {"tok", "model.toml", "text.txt", "teacher", "dump"})
    fs::copy(world().path(name), odd / name, fs::copy_options::recursive);
  ranked_world().write("odd.sh",
                       "rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}\n"
                       "[ $rank = 2 ] && cd odd\nexec \"$@\"\n");
}

void other_files(const Launcher& launcher) {
  make_odd_directory();
  const std::string of_odd = launcher.of(3) + "sh odd.sh";
  std::ofstream(world().path("odd/text.txt"), std::ios::app) << "one more sentence.\n";
  const std::string train = kTrain + std::string("--accumulate 4 --out odd-run");
  Finished done = ranked_world().run(train, of_odd);
  CHECK(done.status != 0);
  INFO(done.error);
  CHECK(
      contains(done.error,
               "brine train: rank 2 has another configuration than rank 0; inputs.train.text.txt"));
  std::filesystem::remove(world().path("odd/text.txt"));
  done = ranked_world().run(train, of_odd);
  CHECK(done.status != 0);
  CHECK(contains(done.error, "rank 2: brine train: text.txt: "));
  // A dump that lacks a shard there.
  std::ofstream(world().path("odd/text.txt")) << read_all(world().path("text.txt"));
  std::filesystem::path shard;
  for (const auto& entry : std::filesystem::directory_iterator(world().path("odd/dump")))
    if (entry.path().extension() == ".h5") shard = entry.path();
  REQUIRE(!shard.empty());
  std::filesystem::rename(shard, shard.string() + ".away");
  done = ranked_world().run(
      World::distill("--steps 3 --columns 12 --k 4 --accumulate 4") + " --dump dump --out odd-run",
      of_odd);
  std::filesystem::rename(shard.string() + ".away", shard);
  CHECK(done.status != 0);
  CHECK(contains(done.error, "rank 2: brine distill: "));
  CHECK(contains(done.error, shard.filename().string()));
  CHECK(!std::filesystem::exists(world().path("odd-run")));
  CHECK(!std::filesystem::exists(world().path("odd/odd-run")));
}
TEST_CASE("ranks: other data, no text or no shard on one rank (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), other_files);
}
TEST_CASE("ranks: other data, no text or no shard on one rank (needs MPICH)") {
  for_launcher(mpich_launcher(), other_files);
}

// Late at the start and stopped for a while: the others wait, as long as the limit allows.
void slow(const Launcher& launcher) {
  ranked_world().write("late.sh",
                       "rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}\n"
                       "[ $rank = 1 ] && sleep 2\nexec \"$@\"\n");
  const std::string keys =
      kTrain + std::string("--steps 3 --accumulate 3 --rank-seconds 60 --out slow-") + launcher.id;
  must_run(keys + "-alone", "OMP_NUM_THREADS=1");
  must_run(keys, launcher.of(3) + "sh late.sh");
  check_same("slow-" + launcher.id, "slow-" + launcher.id + "-alone");
}
TEST_CASE("ranks: a slow one is waited for (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), slow);
}
TEST_CASE("ranks: a slow one is waited for (needs MPICH)") { for_launcher(mpich_launcher(), slow); }

// Rank 0 writes. After its first checkpoint no file of it may grow beyond a few KB, as on a full
// disk.
void full_disk(const Launcher& launcher) {
  const std::string out = "full-" + launcher.id, whole = out + "-whole";
  must_run(long_run(whole), "OMP_NUM_THREADS=1");
  const Finished done = disturbed(launcher, long_run(out), out, [] {
    const rlimit few{4096, 4096};
    CHECK(::prlimit(process_of(0), RLIMIT_FSIZE, &few, nullptr) == 0);
  });
  CHECK(done.status != 0);
  INFO(done.error);
  CHECK(contains(done.error, "rank 0: brine train: "));
  CHECK(contains(done.error, "cannot write: the file would be larger than the limit"));
  check_resumes(launcher, out, whole);
}
TEST_CASE("ranks: a full disk of the rank that writes loses nothing (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), full_disk);
}
TEST_CASE("ranks: a full disk of the rank that writes loses nothing (needs MPICH)") {
  for_launcher(mpich_launcher(), full_disk);
}

}  // namespace
}  // namespace brine::tests
