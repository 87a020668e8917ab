// A training step waits for the device once, when its losses and the gradient's norm are read, and
// nowhere else: with any teacher, and while the next maps of a dump are uploaded. Only a step that
// counts the recall of the mask and a failed one wait again.
#include <cmath>
#include <sstream>

#include "tests/cuda/compare.h"
#include "tests/distill/setup.h"
#include "tests/messages.h"

using namespace brine;
using namespace brine::test;

namespace {

const Sizes kSmall = {.tokens = 8};  // the number of waits depends on no size

struct Steps {
  std::vector<int64_t> waits;  // of each step but the first and the last, which count the recall
  distill::LossTerms last;
};

Steps run_steps(Pair& pair, Teacher& teacher, int64_t accumulate, const LossConfig& losses) {
  TrainerConfig config;
  config.steps = 5;
  config.batch_size = 2;
  config.accumulate = accumulate;
  config.optimizer.learning_rate = 1e-3;
  Scratch scratch;
  Steps out;
  int64_t calls = 0, before = 0;
  // The trainer looks at its clock when a step begins and when it has ended.
  auto clock = [&] {
    if (calls++ % 2) out.waits.push_back(cuda::waits() - before);
    before = cuda::waits();
    return 0.0;
  };
  TrainerParts parts = parts_of(pair, &teacher, config, losses);
  Trainer trainer(
      parts,
      {.run_dir = scratch.path().string(), .configuration = "{}", .seed = 11, .seconds = clock});
  std::ostringstream terminal;
  RunLog log(scratch.path(), terminal, {});
  out.last = trainer.run(&log).last;
  check(out.waits.size() == 5, "a step looks at the clock twice");
  out.waits.erase(out.waits.begin());
  out.waits.pop_back();
  return out;
}

}  // namespace

TEST_CASE("cuda: a step of distillation waits once, with a dump twice for two micro-batches") {
  if (!has_device()) return;
  const Sizes sizes = kSmall;
  Scratch scratch;
  const std::string qk = (scratch / "qk").string(), maps = (scratch / "maps").string();
  {
    const Pair pair(sizes);  // on the CPU
    write_dump(pair, qk, data::DumpContent::qk, 9);
    write_dump(pair, maps, data::DumpContent::maps, 0);
  }
  for (const auto& [dir, accumulate] : {std::pair{qk, 2}, std::pair{maps, 1}}) {
    INFO(dir << ", " << accumulate << " micro-batches");
    Steps host, on_device;
    {
      Pair pair(sizes);
      DumpTeacher teacher(dir, expected_of(pair));
      host = run_steps(pair, teacher, accumulate, {});
    }
    {
      const OnDefault device(kCuda);
      Pair pair(sizes);
      DumpTeacher teacher(dir, expected_of(pair));
      on_device = run_steps(pair, teacher, accumulate, {});
    }
    CHECK(host.waits == std::vector<int64_t>(3, 0));
    // The memory of a micro-batch's maps is reused when the next one is uploaded; in the same step
    // its copies are not yet known to have ended.
    check_emulated(on_device.waits == std::vector<int64_t>(3, accumulate), "waits of each step");
    for (int64_t waits : on_device.waits) CHECK((waits >= 1 && waits <= accumulate + 1));
    // Almost equal values, which other sums order differently, change a loss a little.
    for (const auto& [name, value] : host.last) {
      const double off = std::fabs(on_device.last[name] - value);
      const std::string what = join(name, ": ", on_device.last[name], ", cpu ", value);
      check_emulated(off <= 1e-3 * std::fabs(value) + 1e-7, what);
      CHECK_MESSAGE(off <= 5e-2 * std::fabs(value) + 1e-6, what);
    }
  }
}

TEST_CASE("cuda: a step of two micro-batches with an online teacher waits once") {
  if (!has_device()) return;
  const OnDefault device(kCuda);
  Pair pair(kSmall);
  const nn::ParameterStore on_device(*pair.teacher, nn::ParameterStore::Gradients::later);
  OnlineTeacher teacher(pair.teacher, 9);
  CHECK(run_steps(pair, teacher, 2, {}).waits == std::vector<int64_t>(3, 1));
}

TEST_CASE("cuda: a step that fails names the row of the teacher's logits that is not finite") {
  if (!has_device()) return;
  const OnDefault device(kCuda);
  for (int64_t top_n : {0, 5}) {
    for (double value : {double(NAN), double(INFINITY)}) {
      Pair pair;
      const nn::ParameterStore on_device(*pair.teacher, nn::ParameterStore::Gradients::later);
      const std::string cause = join(": the teacher's logits at token 5 of window ",
                                     pair.source().windows_of(0, 2)[1], " are not finite");
      CAPTURE(top_n);
      CAPTURE(value);
      Unsound teacher(pair.teacher, top_n, 21, value);
      const std::string said = message([&] { run_steps(pair, teacher, 1, {}); });
      CHECK_MESSAGE(contains(said, "step 1: loss term 'kd_task' is "), said);
      CHECK_MESSAGE(contains(said, cause), said);
    }
  }
}
