// The whole program with its models on the device, one of the smallest where it is emulated: what
// it prints and writes, against --device cpu.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::tests;

namespace {

// Made once, on the device: --device is auto, and the emulator takes its time.
const World& device_world() {
  static const World made;
  static const bool written = (made.write("few.txt", sample_text(12)), true);
  (void)written;
  return made;
}

nlohmann::json json_of(const std::string& arguments) {
  return nlohmann::json::parse(device_world().must(arguments).out);
}

// Numbers that the two devices must agree on, to a relative 2e-4: these are f32 runs.
void check_near(const std::string& what, double cpu, double device) {
  CHECK_MESSAGE(std::fabs(cpu - device) <= 2e-4 * std::fabs(cpu) + 1e-9,
                what << ": " << device << ", cpu " << cpu);
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
    device_world().must(how + " --out there" + name + " --device cuda");
    check_near("student", perplexity("here" + name, "cpu"), perplexity("there" + name, "cuda"));
  }
}

TEST_CASE("cuda: a distillation in bf16 and in f16, whose gradients are scaled, as on the cpu") {
  if (!test::has_device()) return;
  auto first_norm = [](const std::string& run) {
    const std::string log = read_all(device_world().path(run + "/log.jsonl"));
    CHECK(contains(log, "\"loss_scale\":65536.0") == contains(run, "-f16"));
    return double(nlohmann::json::parse(log.substr(0, log.find('\n'))).at("gradient_norm"));
  };
  device_world().must(World::distill() + " --device cpu --out cpu-f32");
  const double plain = first_norm("cpu-f32");
  for (const std::string compute : {"bf16", "f16"}) {
    INFO(compute);
    const std::string how = World::distill() + " --compute " + compute + " --device ";
    device_world().must(how + "cpu --out cpu-" + compute);
    device_world().must(how + "cuda --out cuda-" + compute);
    const double norm = first_norm("cpu-" + compute);
    check_near("gradient norm", norm, first_norm("cuda-" + compute));
    CHECK(std::fabs(norm - plain) > 1e-3 * plain);  // more than the two may be apart
    check_near("student", perplexity("cpu-" + compute, "cpu"),
               perplexity("cuda-" + compute, "cuda"));
  }
}

TEST_CASE("cuda: generation and captures as on the cpu") {
  if (!test::has_device()) return;
  const test::SmallDevice small(Dtype::f32);
  for (const char* model : {"teacher", "student"}) {
    INFO(model);
    const std::string call = std::string("generate --model ") + model +
                             " --prompt 'the king' --prompt 'water' --tokens 12 --device ";
    CHECK(device_world().must(call + "cpu").out == device_world().must(call + "cuda").out);
  }
}

TEST_CASE("cuda: what there is no device for is refused in one line") {
  for (const char* name : {"cuda:7", "gpu", "cuda:", "cuda:x"}) {
    Finished f =
        device_world().run(std::string("eval --model teacher --data text.txt --device ") + name);
    CHECK(f.status == 1);
    CHECK_MESSAGE(contains(f.error, "device"), f.error);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
  }
}
