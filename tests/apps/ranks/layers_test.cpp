// Stage attention of a conversion with ranks that own layers: the bits of one process.
#include "tests/apps/ranks/launch.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

// A teacher of five layers.
const World& deep_world() {
  static const bool made = [] {
    ranked_world().write(
        "deep.toml",
        "batch_size = 2\nsequence_length = 32\nsteps = 2\n[model]\nvocab_size = 300\n"
        "hidden_size = 32\nnum_hidden_layers = 5\nnum_attention_heads = 4\nffn_dim = 48\n"
        "max_position_embeddings = 32\n");
    world().must(
        "train --config deep.toml --tokenizer tok --train text.txt --valid text.txt --out deep");
    return true;
  }();
  CHECK(made);
  return ranked_world();
}

std::string layers_run(const std::string& out, int steps, int every, const std::string& keys = "",
                       int accumulate = 4) {
  return join(
      "convert --teacher deep --data text.txt --valid text.txt --batch-size 2 --columns 12 ",
      "--k 4 --preset light --keep 0 --eval-windows 6 --accumulate ", accumulate, " --steps ",
      steps, " --save-every ", every, " --eval-every ", every, " ", keys, " --out ", out);
}

Finished deep_run(const std::string& arguments, const std::string& before) {
  Finished done = deep_world().run(arguments, before);
  REQUIRE_MESSAGE(done.status == 0, before << arguments << ": " << done.error);
  return done;
}

void layers_on(const Launcher& launcher, void (*test)(const Launcher&)) {
  if (!launcher.found()) return test::skip("no " + launcher.name);
  test(launcher);
}

// The number of bytes in "rank 0 sent 1.2 KiB (1234 bytes in all)".
int64_t bytes_sent(const std::string& log) {
  const size_t at = log.find(" (", log.find("rank 0 sent "));
  REQUIRE_MESSAGE(at != log.npos, log);
  return std::stoll(log.substr(at + 2));
}

struct Division {
  int ranks, layers;
  const char* keys;
};

void same_layers(const Launcher& launcher) {
  const std::string id = launcher.name + "-layers";
  const std::map<std::string, std::vector<Division>> runs = {
      {"", {{2, 3, ""}, {3, 2, ""}, {4, 3, ""}, {4, 3, "--zero"}, {5, 1, ""}}},
      {"--compute f16", {{2, 4, ""}}},
      {"--stages attention,joint --joint-steps 2", {{3, 2, ""}}}};
  for (const auto& [keys, divisions] : runs) {
    const std::string alone = join(id, keys.size());
    deep_run(layers_run(alone, 4, 2, keys), "OMP_NUM_THREADS=1");
    for (const Division& d : divisions) {
      const std::string out = join(alone, "-", d.ranks, "-", d.layers, d.keys);
      deep_run(layers_run(out, 4, 2, keys) + join(" --layers-per-rank ", d.layers, " ", d.keys),
               launcher.of(d.ranks, 1 + d.ranks % 2));
      check_same(out, alone);
    }
  }
}

// What travels between two ranks that have all of the data: terms and norms, not gradients.
void few_bytes(const Launcher& launcher) {
  auto bytes_of_six_steps = [&](const std::string& name, const std::string& keys) {
    int64_t bytes = 0;
    for (const int steps : {12, 6}) {  // without what is sent once
      const std::string out = join(launcher.name, "-bytes-", name, steps);
      const Finished done =
          deep_run(layers_run(out, steps, 0, "--no-keep-moments " + keys), launcher.of(2));
      bytes += (steps == 12 ? 1 : -1) * bytes_sent(done.error);
    }
    return bytes;
  };
  const int64_t layers = bytes_of_six_steps("layers", "--layers-per-rank 3");
  const int64_t data = bytes_of_six_steps("data", "");
  INFO(layers, " bytes with layers, ", data, " with data");
  CHECK(layers > 0);
  CHECK(8 * layers < data);
}

void layers_killed(const Launcher& launcher) {
  const std::string whole = launcher.name + "-deep-whole", out = launcher.name + "-deep-killed";
  constexpr int kSteps = 120, kEvery = 10;
  auto run = [&](const std::string& name) { return layers_run(name, kSteps, kEvery); };
  deep_run(run(whole), "");
  for (int r = 0; r < 3; ++r) fs::remove(world().path(join("pid.", r)));
  Finished done;
  std::thread launched(
      [&] { done = deep_world().run(run(out) + " --layers-per-rank 2", launcher.of(3)); });
  const bool began = wait_until(
      60, [&] { return fs::exists(world().path(out + "/step-00000010/manifest.json")); });
  ::kill(process_of(2), SIGKILL);
  launched.join();
  CHECK_MESSAGE(began, done.error);
  CHECK(done.status != 0);
  CHECK(!fs::exists(world().path(out + "/step-00000120")));
  for (const Division& d : {Division{1, 0, ""}, {2, 3, ""}, {4, 3, " --zero"}, {3, 0, ""}}) {
    const std::string copy = join(out, "-", d.ranks, "-", d.layers);
    fs::copy(world().path(out), world().path(copy), fs::copy_options::recursive);
    deep_run(run(copy) + join(" --resume --layers-per-rank ", d.layers, d.keys),
             launcher.of(d.ranks));
    std::map<std::string, std::string> a = traces_of(copy), b = traces_of(whole);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer.json"}) {
      INFO(copy, " ", file);
      const std::string name = std::string("step-00000120/") + file;
      const bool same = !b[name].empty() && a[name] == b[name];
      CHECK(same);
    }
  }
}

void layers_refused(const Launcher& launcher) {
  const std::string out = launcher.name + "-deep-refused";
  const std::string split = " : -n 1 sh rank.sh " + program() + " ";
  const std::string three = layers_run(out, 2, 0) + " --layers-per-rank 3";
  const struct {
    int ranks;
    std::string arguments, says;
  } cases[] = {
      {3, three,
       "brine convert: ranks: 3 ranks for 2 groups of layers; start a multiple of 2, or give "
       "another"},
      {4, layers_run(out, 2, 0, "", 1) + " --layers-per-rank 3",
       "2 ranks for each group of layers for steps of 1 micro-batch; start fewer"},
      {6, three + " --joint-steps 2",
       "stage joint divides micro-batches only, and 6 ranks are more than the 4 of a step"},
      {2, layers_run(out, 2, 0) + split + three,
       "rank 2 has another --layers-per-rank than rank 0: 3, not 0"}};
  for (const auto& c : cases) {
    const Finished done = deep_world().run(c.arguments, launcher.of(c.ranks));
    INFO(c.arguments, ": ", done.error);
    CHECK(done.status != 0);
    CHECK(contains(done.error, c.says));
  }
  CHECK(!fs::exists(world().path(out)));
}

TEST_CASE("layers of ranks: weights, log and checkpoints of one process (needs Open MPI)") {
  layers_on(open_mpi_launcher(), same_layers);
}
TEST_CASE("layers of ranks: weights, log and checkpoints of one process (needs MPICH)") {
  layers_on(mpich_launcher(), same_layers);
}
TEST_CASE("layers of ranks: no gradient is sent (needs Open MPI)") {
  layers_on(open_mpi_launcher(), few_bytes);
}
TEST_CASE("layers of ranks: no gradient is sent (needs MPICH)") {
  layers_on(mpich_launcher(), few_bytes);
}
TEST_CASE("layers of ranks: a killed run continues on any division (needs Open MPI)") {
  layers_on(open_mpi_launcher(), layers_killed);
}
TEST_CASE("layers of ranks: a killed run continues on any division (needs MPICH)") {
  layers_on(mpich_launcher(), layers_killed);
}
TEST_CASE("layers of ranks: impossible divisions are refused (needs Open MPI)") {
  layers_on(open_mpi_launcher(), layers_refused);
}
TEST_CASE("layers of ranks: impossible divisions are refused (needs MPICH)") {
  layers_on(mpich_launcher(), layers_refused);
}

}  // namespace
}  // namespace brine::tests
