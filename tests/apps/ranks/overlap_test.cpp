// Gradients that leave while the backward pass runs: how many, and that nothing else changes.
#include "tests/apps/ranks/training.h"

namespace brine::tests {
namespace {

struct Early {
  int64_t early = -1, all = -1;
};

// Of "31 % of the bytes of gradients (N of M) left rank 0 before", of the last stage.
Early early_bytes(const std::string& log) {
  const std::string mark = " % of the bytes of gradients (";
  const size_t at = log.rfind(mark);
  REQUIRE_MESSAGE(at != log.npos, log);
  const size_t between = log.find(" of ", at + mark.size());
  return {std::stoll(log.substr(at + mark.size())), std::stoll(log.substr(between + 4))};
}

void overlapped(const Launcher& launcher) {
  const std::string distill =
      World::distill("--steps 3 --columns 12 --k 4 --accumulate 4") + " --valid text.txt --keep 0 ";
  const std::string convert =
      "convert --teacher teacher --data text.txt --batch-size 2 --steps 3 --accumulate 4 "
      "--stages attention --preset light --columns 12 --k 4 --valid text.txt --keep 0 ";
  const std::string train = kTrain + std::string("--steps 3 --accumulate 4 ");
  const std::map<std::string, std::string> runs = {{"train", train},
                                                   {"recomputed", train + "--recompute "},
                                                   {"distill", distill},
                                                   {"distill-recomputed", distill + "--recompute "},
                                                   {"convert", convert}};
  for (const auto& [name, command] : runs) {
    const std::string run = launcher.id + "-overlap-" + name;
    INFO(run);
    Finished with = ranked_world().run(command + "--out " + run, launcher.of(2));
    REQUIRE_MESSAGE(with.status == 0, with.error);
    const Finished without =
        ranked_world().run(command + "--no-overlap --out " + run + "-off", launcher.of(2));
    REQUIRE_MESSAGE(without.status == 0, without.error);
    const Early on = early_bytes(with.error), off = early_bytes(without.error);
    CHECK(on.all > 0);
    CHECK(on.early > 0);
    CHECK(on.early <= on.all);
    CHECK(off.early == 0);
    CHECK(off.all == on.all);
    check_same(run, run + "-off");
    must_run(command + "--out " + run + "-alone", "OMP_NUM_THREADS=1");
    check_same(run, run + "-alone");
    // Ranks with several nodes of the tree, and others with one.
    with = ranked_world().run(command + "--zero --out " + run + "-3", launcher.of(3));
    REQUIRE_MESSAGE(with.status == 0, with.error);
    CHECK(early_bytes(with.error).early > 0);
    check_same(run + "-3", run + "-alone");
  }
}

TEST_CASE("ranks: gradients leave during the backward pass, the bits stay (needs Open MPI)") {
  for_launcher(open_mpi_launcher(), overlapped);
}
TEST_CASE("ranks: gradients leave during the backward pass, the bits stay (needs MPICH)") {
  for_launcher(mpich_launcher(), overlapped);
}

}  // namespace
}  // namespace brine::tests
