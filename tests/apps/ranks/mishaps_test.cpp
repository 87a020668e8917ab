// What goes wrong on one rank: one line that names it, and nothing lost.
#include <sys/resource.h>

#include "tests/apps/ranks/training.h"

namespace brine::tests {
namespace {

// A directory of one rank, as on a machine that does not share the others' files.
void make_odd_directory() {
  namespace fs = std::filesystem;
  const fs::path odd = world().path("odd");
  if (fs::exists(odd)) return;
  fs::create_directory(odd);
  for (const char* name : {"tok", "model.toml", "text.txt", "teacher", "dump"})
    fs::copy(world().path(name), odd / name, fs::copy_options::recursive);
  ranked_world().write("odd.sh",
                       "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"
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
  // A dump that lacks a shard in that directory.
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
RANKS_TEST_CASE("ranks: other data, no text or no shard on one rank", other_files)

// Late at the start and stopped for a while: the others wait, as long as the limit allows.
void slow(const Launcher& launcher) {
  ranked_world().write("late.sh",
                       "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"
                       "[ $rank = 1 ] && sleep 2\nexec \"$@\"\n");
  const std::string keys =
      kTrain + std::string("--steps 3 --accumulate 3 --rank-seconds 60 --out slow-") + launcher.id;
  must_run(keys + "-alone", "OMP_NUM_THREADS=1");
  must_run(keys, launcher.of(3) + "sh late.sh");
  check_same("slow-" + launcher.id, "slow-" + launcher.id + "-alone");
}
RANKS_TEST_CASE("ranks: a slow one is waited for", slow)

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
RANKS_TEST_CASE("ranks: a full disk of the rank that writes loses nothing", full_disk)

}  // namespace
}  // namespace brine::tests
