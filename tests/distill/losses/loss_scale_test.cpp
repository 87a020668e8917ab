// Loss scaling: no bit changes while nothing overflows; overflows, growth and resumption.
#include "distill/losses/loss_scale.h"

#include "autograd/compute_type.h"
#include "distill/losses/loss_table.h"
#include "tensor/kernels/dense.h"
#include "tests/distill/runs.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// More rows than the number that linear() does not round (kFewRows).
const Sizes kSizes{.tokens = 20, .dropout = 0.2};

// Of the step lines of a log, in order; NaN where it is absent.
std::vector<double> logged(const fs::path& dir, const char* name) {
  std::vector<double> out;
  for (const std::string& line : log_lines(dir)) {
    Json json = Json::parse(line);
    if (json.at("type") != "step") continue;
    out.push_back(json.contains(name) ? double(json.at(name)) : NAN);
  }
  return out;
}

std::vector<std::string> events(const fs::path& dir) {
  std::vector<std::string> out;
  for (const std::string& line : log_lines(dir)) {
    Json json = Json::parse(line);
    if (json.at("type") == "event") out.push_back(json.at("text"));
  }
  return out;
}

Ran train_f16(const fs::path& dir, const TrainerConfig& config, bool resume = false,
              const LossConfig& losses = {}, const Sizes& sizes = kSizes) {
  const ComputeType compute(Dtype::f16);
  auto teacher = online(sizes);
  return train(dir, sizes, teacher.get(), config, resume, losses);
}

// Gradients of one batch.
Tensor gradients(Pair& pair, Teacher* teacher, const LossConfig& losses, Objective::Call call,
                 LossTerms& terms) {
  pair.store->zero_gradients();
  RandomStream random{.seed = 3, .stream = 2};
  call.random = &random;
  Objective(*pair.student, teacher, losses).run(pair.source().in_order(0, 3), call, terms);
  return pair.store->gradients().clone();
}

Tensor times(const Tensor& x, double factor) {
  Tensor y = Tensor::like(x);
  BRINE_CALL(x, axpby, y, x, factor, 0.0);
  return y;
}

}  // namespace

TEST_CASE("loss scale: every loss has its gradient times the scale, to the bit; its value stays") {
  Pair pair(kSizes);
  Scratch scratch;
  write_dump(pair, (scratch / "dump").string(), data::DumpContent::qk, 8, true, Dtype::f32,
             {"head_value", "row_entropy"});  // of the losses that tests register
  LossConfig none = task_only();
  none["task"] = 0;
  std::vector<LossConfig> configs(1);
  for (const Loss& loss : losses()) {
    configs.push_back(none);
    configs.back()[loss.name] = 0.7;
  }
  OnlineTeacher beside(pair.teacher);
  DumpTeacher dumped((scratch / "dump").string(), expected_of(pair));
  for (Teacher* teacher : std::initializer_list<Teacher*>{&beside, &dumped}) {
    for (size_t i = 0; i < configs.size(); ++i) {
      for (bool recompute : {false, true}) {
        INFO("losses " << i << (recompute ? ", recomputing" : ""));
        LossTerms terms, same;
        Objective::Call call{.share = 0.5, .recompute = recompute};
        const Tensor plain = gradients(pair, teacher, configs[i], call, terms);
        call.loss_scale = 0x1p20;
        const Tensor scaled = gradients(pair, teacher, configs[i], call, same);
        CHECK(terms == same);
        CHECK(largest(plain.to_vector()) > 0);
        CHECK(same_bits(scaled, times(plain, 0x1p20)));
      }
    }
  }
}

TEST_CASE("loss scale: in f32 a scaled run is the plain run, bit for bit, clipped or not") {
  Scratch scratch;
  for (double clip : {0.0, 0.05}) {
    TrainerConfig config = six_steps();
    config.optimizer.clip = clip;
    config.recompute = clip > 0;
    for (LossScaling enabled : {LossScaling::automatic, LossScaling::on}) {
      const bool on = enabled == LossScaling::on;
      config.loss_scale = {.enabled = enabled, .initial = 1 << 16, .growth_interval = 4};
      auto teacher = online(kSizes);
      train(scratch / join(on ? "on" : "auto", clip), kSizes, teacher.get(), config);
    }
    const fs::path plain = scratch / join("auto", clip), scaled = scratch / join("on", clip);
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      CHECK((file(plain, 6, name) == file(scaled, 6, name)));
    }
    CHECK(logged(plain, "gradient_norm") == logged(scaled, "gradient_norm"));
    if (clip > 0) CHECK(logged(plain, "gradient_norm").at(0) > clip);
    CHECK(logged(plain, "loss") == logged(scaled, "loss"));
    const double s = 1 << 16;
    CHECK(logged(scaled, "loss_scale") == std::vector<double>{s, s, s, s, 2 * s, 2 * s});
    CHECK_FALSE(Json::parse(log_lines(plain).at(0)).contains("loss_scale"));
    CHECK_FALSE(Json::parse(file(plain, 6, "trainer.json")).contains("loss_scale"));
  }
}

TEST_CASE("loss scale: gradients too small for f16 are kept by it and lost without") {
  Pair pair({.tokens = 20}, "flash");
  LossTerms terms;
  const double share = 0x1p-20;
  const Tensor exact = gradients(pair, nullptr, task_only(), {.share = share}, terms);
  const ComputeType compute(Dtype::f16);
  const Tensor lost = gradients(pair, nullptr, task_only(), {.share = share}, terms);
  const Tensor kept = times(
      gradients(pair, nullptr, task_only(), {.share = share, .loss_scale = 0x1p20}, terms), share);
  CHECK(close_to_scale(kept, exact, 3e-3));
  const std::vector<double> a = lost.to_vector(), b = exact.to_vector();
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = std::max(difference, std::fabs(a[i] - b[i]));
  CHECK(difference > 0.1 * largest(b));
}

TEST_CASE("loss scale: f16 overflows until the scale fits, then learns; weights stay meanwhile") {
  Scratch scratch;
  TrainerConfig config = six_steps();
  config.steps = 24;
  config.save_every = 1;
  config.eval_every = 0;
  config.loss_scale = {.initial = int64_t(1) << 32, .growth_interval = 1000};
  const fs::path dir = scratch / "run";
  // Random features are drawn at the start of a step, whatever its result: none here.
  const Ran ran = train_f16(dir, config, false, {}, {.tokens = 20, .dropout = 0.2});
  const std::vector<double> scales = logged(dir, "loss_scale"),
                            norms = logged(dir, "gradient_norm");
  double scale = 0x1p32;
  int64_t overflows = 0, in_a_row = 0;
  std::string before;
  for (size_t step = 1; step <= 24; ++step) {
    INFO("step " << step);
    CHECK(scales.at(step - 1) == scale);
    const std::string now = file(dir, int64_t(step), "model.safetensors");
    if (std::isfinite(norms.at(step - 1))) {
      CHECK(norms.at(step - 1) < 100);  // without the scale
      CHECK(now != before);
      ++in_a_row;
    } else {
      if (step > 1) CHECK(now == before);
      scale /= 2;
      ++overflows;
      in_a_row = 0;
    }
    before = now;
  }
  INFO(overflows << " overflows");
  CHECK(overflows >= 8);
  CHECK(overflows <= 18);
  CHECK(ran.outcome.overflows == overflows);
  CHECK(ran.outcome.skipped == 0);
  CHECK(ran.outcome.steps == 24);
  CHECK(logged(dir, "rate").at(1) > logged(dir, "rate").at(0));  // the schedule counts them
  const Json state = Json::parse(file(dir, 24, "trainer.json"));
  CHECK(state.at("optimizer_steps") == 24 - overflows);
  CHECK(state.at("skipped_steps") == 0);
  CHECK(state.at("loss_scale") ==
        Json({{"value", scale}, {"finite_in_a_row", in_a_row}, {"overflows", overflows}}));
  const std::vector<std::string> said = events(dir);
  REQUIRE(int64_t(said.size()) == overflows);
  CHECK(said[1] ==
        "step 2 skipped: its gradient overflowed at loss scale 2147483648, now 1073741824 (2 so "
        "far)");
  config.loss_scale = {.enabled = LossScaling::off};
  CHECK(train_f16(scratch / "off", config).outcome.overflows == 0);
}

TEST_CASE("loss scale: it grows after an interval without overflows, and an overflow starts anew") {
  LossScale scale({.enabled = LossScaling::on, .initial = 8, .growth_interval = 3});
  std::vector<int64_t> seen;
  for (const bool finite :
       {true, true, false, true, true, true, true, false, false, false, true, true, true}) {
    if (finite) {
      scale.count_finite();
    } else {
      CHECK(scale.back_off());
    }
    seen.push_back(scale.value());
  }
  CHECK(seen == std::vector<int64_t>{8, 8, 4, 4, 4, 8, 8, 4, 2, 1, 1, 1, 2});
  CHECK(scale.back_off());
  CHECK_FALSE(scale.back_off());
  CHECK(scale.value() == 1);
  CHECK(scale.overflows() == 5);
}

TEST_CASE("loss scale: a run of f16 resumes bit for bit, over overflows and growth") {
  Scratch scratch;
  TrainerConfig config = six_steps();
  config.steps = 9;
  config.loss_scale = {.initial = int64_t(1) << 26, .growth_interval = 2};
  for (bool recompute : {false, true}) {
    const std::string name = std::to_string(recompute);
    config.recompute = recompute;
    const Ran whole = train_f16(scratch / ("whole" + name), config);
    CHECK(whole.outcome.overflows > 0);
    copy_killed(scratch / ("whole" + name), scratch / ("killed" + name));
    const Ran resumed = train_f16(scratch / ("killed" + name), config, true);
    check_same_run(scratch / ("whole" + name), scratch / ("killed" + name), 9);
    CHECK(resumed.outcome.overflows == whole.outcome.overflows);
  }
  CHECK(file(scratch / "whole0", 9, "model.safetensors") ==
        file(scratch / "whole1", 9, "model.safetensors"));
}

TEST_CASE("loss scale: an overflow at scale 1 stops the run; an infinite loss is not an overflow") {
  Scratch scratch;
  TrainerConfig config = six_steps();
  config.loss_scale.initial = 4;
  config.nonfinite = OnNonfinite::skip;
  LossConfig losses = task_only();
  losses["task"] = 1e12;
  check_says(message([&] { train_f16(scratch / "run", config, false, losses); }),
             {"step 3", "gradient", "finite", "scale 1", "--compute", "bf16", "f32"});
  Spy teacher(online(kSizes), 2);
  config.loss_scale.enabled = LossScaling::on;
  const Ran ran = train(scratch / "bad", kSizes, &teacher, config);
  CHECK(ran.outcome.skipped == 1);
  CHECK(ran.outcome.overflows == 0);
}

TEST_CASE("loss scale: under compute f16 by itself; a first scale is a power of two") {
  const LossScaleConfig config;
  CHECK_FALSE(config.active());
  CHECK(LossScale(config).value() == 1);
  {
    const ComputeType compute(Dtype::f16);
    CHECK(config.active());
    CHECK(LossScale(config).value() == 65536);
    CHECK_FALSE(LossScaleConfig{.enabled = LossScaling::off}.active());
  }
  {
    const ComputeType compute(Dtype::bf16);
    CHECK_FALSE(config.active());
  }
  check_says(message([] { LossScale({.initial = 1000}); }),
             {"loss_scale.initial", "1000", "4294967296"});
  check_says(message([] { LossScale({.initial = int64_t(1) << 33}); }),
             {"loss_scale.initial", "8589934592", "4294967296"});
}

}  // namespace brine::test
