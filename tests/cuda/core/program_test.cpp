// The whole program with its models on the device, one of the smallest where it is emulated: what
// it prints and writes, against --device cpu.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "data/dump/dump_reader.h"
#include "tests/apps/world.h"
#include "tests/cuda/compare.h"
#include "tests/paths.h"

using namespace brine;
using namespace brine::tests;

namespace {

// Made once, on the device: the emulator takes its time.
const World& device_world() {
  static const World made(test::has_device() ? " --device cuda" : "");
  static const bool written = (made.write("few.txt", sample_text(12)), true);
  (void)written;
  return made;
}

nlohmann::json json_of(const std::string& arguments) {
  return nlohmann::json::parse(device_world().must(arguments).out);
}

// Numbers that the two devices must agree on, to a relative 2e-4: these are f32 runs. On a GPU
// almost equal scores may change a column that a student keeps; a fault would change more than 5 %.
void check_near(const std::string& what, double cpu, double device) {
  const std::string both = join(what, ": ", device, ", cpu ", cpu);
  const double difference = std::fabs(cpu - device);
  test::check_emulated(difference <= 2e-4 * std::fabs(cpu) + 1e-9, both);
  CHECK_MESSAGE(difference <= 0.05 * std::fabs(cpu) + 1e-9, both);
}

// The finished shards of a dump by name.
std::map<std::string, std::string> shards(const std::string& dump) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(device_world().path(dump)))
    out[entry.path().filename().string()] = read_all(entry.path().string());
  return out;
}

double perplexity(const std::string& model, const std::string& device) {
  return json_of("eval --model " + model + " --data few.txt --json -q --device " +
                 device)["perplexity"];
}

}  // namespace

TEST_CASE("cuda: training, dumps, distillation and evaluation as on the cpu") {
  if (!test::has_device()) return;
  const test::SmallDevice small(Dtype::f32);
  device_world().must(World::train() + " --device cpu --out teacher-cpu");
  check_near("teacher", perplexity("teacher-cpu", "cpu"), perplexity("teacher", "cuda"));
  check_near("teacher elsewhere", perplexity("teacher", "cpu"), perplexity("teacher", "cuda"));
  device_world().must(
      "dump --model teacher --data text.txt --out dump-cpu --windows 6 --device cpu");
  int run = 0;
  for (const char* way : {"--dump dump", "", "--dump maps"}) {
    INFO("teacher: " << way);
    const std::string how = World::distill() + " " + way;
    const std::string name = std::to_string(++run);
    device_world().must(how + " --out here" + name + " --device cpu");
    const Finished finished = device_world().must(how + " --out there" + name + " --device cuda");
    CHECK_MESSAGE(contains(finished.error, " on cuda:0, there"), finished.error);
    check_near("student", perplexity("here" + name, "cpu"), perplexity("there" + name, "cuda"));
  }
}

TEST_CASE("cuda: stage joint, evaluation and generation with blocks as on the cpu") {
  if (!test::has_device()) return;
  const test::SmallDevice small(Dtype::f32);
  // A choice does not change with roundings of queries and keys if every block is chosen.
  const std::string how =
      "distill --teacher teacher --data text.txt --joint-steps 2 --lengths 32 --batch-size 2 "
      "--attention blocks --block 4 --tile 2 --k 32";
  device_world().must(how + " --out blocks-here --device cpu");
  device_world().must(how + " --out blocks-there --device cuda");
  check_near("student", perplexity("blocks-here", "cpu"), perplexity("blocks-there", "cuda"));
  check_near("student elsewhere", perplexity("blocks-here", "cpu"),
             perplexity("blocks-here", "cuda"));
  // With the lists of blocks of a state that was saved.
  auto words = [&](const std::string& device) {
    const std::string call = "generate --model blocks-here --tokens 9 --device " + device;
    device_world().must(call + " --prompt 'the king' --save-state blocks-" + device);
    return device_world().must(call + " --prompt ' and' --load-state blocks-" + device).out;
  };
  const std::string host = words("cpu"), device_words = words("cuda");
  test::check_emulated(host == device_words, join("cpu: ", host, "device: ", device_words));
}

TEST_CASE("cuda: a distillation in bf16 as on the cpu") {
  if (!test::has_device()) return;
  auto first_norm = [](const std::string& run) {
    const std::string log = read_all(device_world().path(run + "/log.jsonl"));
    return double(nlohmann::json::parse(log.substr(0, log.find('\n'))).at("gradient_norm"));
  };
  // The paper's decoder: its convolutions and layers multiply in 16 bits, which light has none of.
  const std::string keys =
      World::distill("--decoder paper --steps 2 --columns 12 --k 4 --approx 0.5");
  device_world().must(keys + " --device cpu --out cpu-f32");
  const double plain = first_norm("cpu-f32");
  const std::string how = keys + " --compute bf16 --device ";
  device_world().must(how + "cpu --out cpu-bf16");
  device_world().must(how + "cuda --out cuda-bf16");
  const double norm = first_norm("cpu-bf16");
  check_near("gradient norm", norm, first_norm("cuda-bf16"));
  CHECK(std::fabs(norm - plain) > 1e-3 * plain);  // more than the two may differ
  check_near("student", perplexity("cpu-bf16", "cpu"), perplexity("cuda-bf16", "cuda"));
  // The f16 values of a dump are the same teacher on both, whatever the compute type.
  device_world().must(how + "cpu --dump dump --out cpu-dump-bf16");
  device_world().must(how + "cuda --dump dump --out cuda-dump-bf16");
  check_near("gradient norm from a dump", first_norm("cpu-dump-bf16"),
             first_norm("cuda-dump-bf16"));
}

TEST_CASE("cuda: --cudnn off keeps 16 bits from cuDNN, auto takes them there") {
  if (!test::has_device()) return;
  const World& w = device_world();
  const bool serves = cuda::emulated() || !contains(cuda::cudnn_version(), "none");
  struct Seen {
    double norm, perplexity;
  };
  // A distillation, whose student has convolutions, and its teacher's perplexity, both in bf16.
  auto run = [&](const std::string& cudnn, bool called) {
    INFO("--cudnn " << cudnn);
    const std::string how = " --compute bf16 --device cuda --verbose --cudnn " + cudnn;
    const std::string out = "cudnn-" + cudnn, with_cudnn = "export BRINE_EMULATED_CUDNN=1;";
    const Finished distilled = w.run(World::distill() + how + " --out " + out, with_cudnn);
    const Finished scored = w.run("eval --model teacher --data few.txt --json" + how, with_cudnn);
    for (const Finished& f : {distilled, scored}) {
      REQUIRE_MESSAGE(f.status == 0, f.error);
      CHECK_MESSAGE(contains(f.error, "cuDNN was called "), f.error);
      CHECK_MESSAGE(contains(f.error, "cuDNN was called 0 times") != called, f.error);
    }
    const std::string log = read_all(w.path(out + "/log.jsonl"));
    return Seen{nlohmann::json::parse(log.substr(0, log.find('\n'))).at("gradient_norm"),
                nlohmann::json::parse(scored.out).at("perplexity")};
  };
  const Seen off = run("off", false), automatic = run("auto", serves);
  check_near("gradient norm", off.norm, automatic.norm);
  check_near("teacher", off.perplexity, automatic.perplexity);
  for (const char* command : {"eval --model teacher --data few.txt", "bench breakdown"}) {
    const Finished f = w.run(std::string(command) + " --cudnn of");
    CHECK(f.status == 1);
    CHECK_MESSAGE(contains(f.error, "cudnn"), f.error);
    CHECK_MESSAGE(contains(f.error, "off"), f.error);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  }
}

TEST_CASE(
    "cuda: a dump does not wait for the device, is the same each time and continues after a "
    "fault") {
  if (!test::has_device()) return;
  const World& w = device_world();
  // Two shards, many batches.
  const std::string dump =
      "dump --model teacher --data text.txt --windows 26 --batch-size 2 --content maps "
      "--logits full --dtype f32 --shard-mib 1 --verbose --out ";
  const Finished whole = w.must(dump + "whole --device cuda");
  CHECK_MESSAGE(contains(whole.error, "waited for the device 0 times"), whole.error);
  CHECK_MESSAGE(contains(whole.error, " on cuda:0"), whole.error);
  const auto wanted = shards("whole");
  CHECK(wanted.size() == 3);  // and the manifest
  w.must(dump + "near --device cpu");
  const data::DumpReader device(w.path("whole")), host(w.path("near"));
  const std::vector<int64_t> all = {0, 7, 11, 25};
  const data::DumpBatch a = host.read(all), b = device.read(all);
  for (size_t l = 0; l < a.layers.size(); ++l) {
    test::check_close("maps", a.layers[l]["attention"], b.layers[l]["attention"], 1e-5);
    test::check_close("context", a.layers[l]["attention_output"], b.layers[l]["attention_output"],
                      1e-4);
    test::check_close("output", a.layers[l]["output"], b.layers[l]["output"], 1e-4);
  }
  test::check_close("logits", a.tensors["logits"], b.tensors["logits"], 1e-4);
  test::check_close("lse", a.tensors["lse"], b.tensors["lse"], 1e-5);

  Finished f = w.run(dump + "full --quiet --device cuda", "ulimit -f 40;");
  CHECK(f.status == 1);
  CHECK_MESSAGE(contains(f.error, "brine dump: full/shard-00000.h5.tmp"), f.error);
  CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  w.must(dump + "full --device cuda");
  CHECK((shards("full") == wanted));

  const std::string program = tests::program() + " ";
  const std::string stop = "cd " + w.path(".") + "; " + program + dump +
                           "stopped --device cuda 2>stopped.log & n=0; while [ ! -e "
                           "stopped/shard-00000.h5 ] && [ $n -lt 6000 ]; do sleep 0.01; "
                           "n=$((n+1)); done; kill -TERM $!; wait $!";
  // A fast device has written all before the signal comes.
  test::check_emulated(WEXITSTATUS(std::system(stop.c_str())) == 130, "stopped by a signal");
  test::check_emulated(contains(read_all(w.path("stopped.log")), "the same command continues"),
                       "the message of a stopped dump");
  CHECK(contains(w.must(dump + "stopped --device cuda").error, "shard-00000.h5: verified"));
  CHECK((shards("stopped") == wanted));
}

TEST_CASE("cuda: commands report the memory they used on the device") {
  if (!test::has_device()) return;
  const std::string eval = "eval --model student --data few.txt --json -q --device ";
  CHECK(json_of(eval + "cuda")["device"] == "cuda:0");
  CHECK(json_of(eval + "cuda:0")["peak_bytes"] > 10000);
  CHECK_FALSE(json_of(eval + "cpu").contains("peak_bytes"));
  CHECK(json_of("generate --model student --prompt 'the king' --tokens 2 --json -q --device cuda")
            ["peak_bytes"] > 10000);
}

TEST_CASE("cuda: a bench runs on the device") {
  if (!test::has_device()) return;
  const nlohmann::json out = json_of("bench breakdown --quick --tokens 16 --json -q --device cuda");
  CHECK(out["device"] == "cuda:0");
  CHECK(out["rows"].size() >= 20);
  for (const auto& row : out["rows"]) {
    INFO(row["name"]);
    CHECK(row["ms"] > 0);
  }
}

TEST_CASE("cuda: generation and captures as on the cpu") {
  if (!test::has_device()) return;
  const test::SmallDevice small(Dtype::f32);
  for (const char* model : {"teacher", "student"}) {
    INFO(model);
    const std::string call = std::string("generate --model ") + model +
                             " --prompt 'the king' --prompt 'water' --tokens 12 --device ";
    const std::string host = device_world().must(call + "cpu").out;
    const std::string device = device_world().must(call + "cuda").out;
    test::check_emulated(host == device, join("cpu: ", host, "device: ", device));
    CHECK(device.size() > host.size() / 2);
  }
}

TEST_CASE("cuda: a missing device is an error of one line") {
  for (const char* name : {"cuda:7", "gpu", "cuda:", "cuda:x"}) {
    Finished f =
        device_world().run(std::string("eval --model teacher --data text.txt --device ") + name);
    CHECK(f.status == 1);
    CHECK_MESSAGE(contains(f.error, "device"), f.error);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  }
}
