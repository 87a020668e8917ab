// The training loop: it learns, resumes bit for bit, survives bad steps, and keeps its memory
// constant.
#include "tests/distill/runs.h"
#include "tests/messages.h"

namespace brine::test {

TEST_CASE("trainer: one batch is memorised") {
  Sizes sizes{.windows = 2};
  for (const char* kind : {"task", "distill"}) {
    Scratch scratch;
    TrainerConfig c;
    c.steps = 120;
    c.batch_size = 2;
    c.optimizer.learning_rate = c.optimizer.attention_learning_rate = 5e-3;
    bool task = kind == std::string("task");
    auto teacher = online(sizes);
    Ran ran = train(scratch / "run", sizes, task ? nullptr : teacher.get(), c, false,
                    task ? task_only() : LossConfig{});
    Json first = Json::parse(log_lines(scratch / "run")[0]);
    double begin = first.at("loss"), end = ran.outcome.last.at("loss");
    INFO(kind << ": " << begin << " to " << end);
    CHECK(ran.outcome.steps == 120);
    CHECK(begin > (task ? 3.0 : 0.5));
    CHECK(end < (task ? 0.1 : 0.5 * begin));
  }
}

TEST_CASE("trainer: a resumed run is the uninterrupted run, bit for bit") {
  Sizes sizes{.dropout = 0.2};
  Scratch scratch;
  Pair pair(sizes);
  std::string dump = (scratch / "dump").string();
  write_dump(pair, dump, data::DumpContent::qk, 8);
  for (bool dumped : {false, true}) {
    for (bool recompute : {false, true}) {
      INFO((dumped ? "from a dump" : "online") << (recompute ? ", recomputing" : ""));
      auto teacher = [&]() -> std::unique_ptr<Teacher> {
        if (!dumped) return online(sizes);
        return std::make_unique<DumpTeacher>(dump, expected_of(pair));
      };
      std::string name = join(dumped, recompute);
      TrainerConfig config = six_steps();
      config.recompute = recompute;
      auto first = teacher(), second = teacher();
      train(scratch / ("whole" + name), sizes, first.get(), config);
      copy_killed(scratch / ("whole" + name), scratch / ("killed" + name));
      Ran resumed = train(scratch / ("killed" + name), sizes, second.get(), config, true);
      CHECK(resumed.outcome.steps == 6);
      check_same_run(scratch / ("whole" + name), scratch / ("killed" + name), 6);
      CHECK(file(scratch / ("whole" + name), 3, "model.safetensors") !=
            file(scratch / ("whole" + name), 6, "model.safetensors"));
    }
  }
  // Recomputation does not change training.
  CHECK(file(scratch / "whole00", 6, "model.safetensors") ==
        file(scratch / "whole01", 6, "model.safetensors"));
}

TEST_CASE(
    "trainer: the log has the recall of the mask, of the first step that of the first batch") {
  const Sizes sizes{.windows = 2};
  Scratch scratch;
  auto teacher = online(sizes);
  TrainerConfig config = six_steps();
  config.accumulate = 1;
  const Ran ran = train(scratch / "run", sizes, teacher.get(), config);
  std::vector<Json> steps;
  std::istringstream in(data::read_file(scratch / "run/log.jsonl"));
  for (std::string line; std::getline(in, line);)
    if (Json json = Json::parse(line); json.at("type") == "step") steps.push_back(json);
  REQUIRE(steps.size() == 6);
  for (const Json& step : {steps.front(), steps.back()}) {
    CHECK(step.at("k") == 3);
    CHECK(step.at("columns") == 12);
  }
  // The untrained student on that batch, by a pass of its own.
  Pair pair(sizes);
  const Batch batch = pair.source().batch(0, config.batch_size);
  nn::LoadedModel full, student;
  full.config = pair.teacher_config;
  full.model = pair.teacher;
  student.config = pair.config;
  RecallObserver observer(std::move(full), student);
  NoGrad off;
  observer.begin(batch);
  pair.student->hidden({.ids = batch.ids, .observer = &observer});
  const MaskHealth health = mask_health(observer.layers());
  CHECK(double(steps.front().at("recall")) == doctest::Approx(health.recall).epsilon(1e-6));
  CHECK(double(steps.front().at("kept_share")) == doctest::Approx(health.keys_read / 8.5));
  CHECK(health.recall < 1);
  CHECK(ran.terminal.find("k 3, columns 12, recall 0.") != std::string::npos);
  CHECK(double(steps.back().at("recall")) != double(steps.front().at("recall")));
}

TEST_CASE("trainer: a damaged newest checkpoint falls back to the one before") {
  Sizes sizes{.dropout = 0.2};
  Scratch scratch;
  auto a = online(sizes), b = online(sizes);
  train(scratch / "run", sizes, a.get(), six_steps());
  std::string whole = file(scratch / "run", 6, "model.safetensors");
  fs::resize_file(data::checkpoint_path(scratch / "run", 6) / "optimizer.safetensors", 100);
  train(scratch / "run", sizes, b.get(), six_steps(), true);
  CHECK(file(scratch / "run", 6, "model.safetensors") == whole);
}

TEST_CASE("trainer: a finished run without the optimizer's moments has the same weights") {
  Scratch scratch;
  auto a = online({}), b = online({}), c = online({});
  train(scratch / "whole", {}, a.get(), six_steps());
  TrainerConfig config = six_steps();
  config.keep_moments = false;
  train(scratch / "lean", {}, b.get(), config);
  auto has_moments = [&](const char* run, int64_t step) {
    return fs::exists(data::checkpoint_path(scratch / run, step) / "optimizer.safetensors");
  };
  CHECK(has_moments("whole", 6));
  CHECK(has_moments("lean", 3));  // a run that is not finished goes on
  CHECK_FALSE(has_moments("lean", 6));
  CHECK_FALSE(data::checkpoint_defect(data::checkpoint_path(scratch / "lean", 6)));
  CHECK(file(scratch / "lean", 6, "model.safetensors") ==
        file(scratch / "whole", 6, "model.safetensors"));
  // Nothing is left to do; more steps are refused.
  CHECK(train(scratch / "lean", {}, c.get(), config, true).outcome.steps == 6);
  config.steps = 8;
  CHECK(contains(message([&] { train(scratch / "lean", {}, c.get(), config, true); }),
                 "has no optimizer.safetensors (keep_moments was off)"));
}

TEST_CASE("trainer: a changed configuration is listed and stops the resumption") {
  Scratch scratch;
  auto teacher = online({});
  train(scratch / "run", {}, teacher.get(), six_steps());
  CHECK(message([&] {
          train(scratch / "run", {}, teacher.get(), six_steps(), true, {}, "{\"k\": 4}");
        }) == (scratch / "run").string() + ": the configuration changed since; k: 3 -> 4");
  CHECK(message([&] { train(scratch / "new", {}, teacher.get(), six_steps(), true); }) ==
        (scratch / "new").string() + ": no intact checkpoint to resume from");
}

TEST_CASE("trainer: a run stops when its seconds are over, its schedule with them") {
  Scratch scratch;
  TrainerConfig config = six_steps();
  config.steps = 100000;
  config.max_seconds = 10;
  config.eval_every = config.save_every = 0;
  double now = 0;
  auto clock = [&] { return now += 2; };  // two looks a step: a step takes two seconds
  auto run = [&](bool resume) {
    return train(scratch / "run", {}, nullptr, config, resume, task_only(), "{\"k\": 3}", clock);
  };
  Ran ran = run(false);
  CHECK(ran.outcome.steps == 5);
  CHECK(ran.outcome.seconds == 10);
  CHECK_FALSE(ran.outcome.interrupted);
  // Linear to 0 over the seconds, not the steps: the last step began with two of ten left.
  CHECK(ran.outcome.last.at("rate") == doctest::Approx(0.2 * config.optimizer.learning_rate));
  const int64_t steps = ran.outcome.steps;
  CHECK(Json::parse(file(scratch / "run", steps, "trainer.json")).at("step") == steps);
  CHECK(has_evaluation(scratch / "run", steps));
  CHECK_FALSE(has_evaluation(scratch / "run", steps - 1));
  // No time is left for a resumed one.
  CHECK(run(true).outcome.steps == steps);
}

TEST_CASE("trainer: a loss that is not finite stops with its term and step") {
  Scratch scratch;
  Spy teacher(online({}), 5);  // the second micro-batch of step 3
  TrainerConfig config = six_steps();
  CHECK(message([&] { train(scratch / "run", {}, &teacher, config); }) ==
        "step 3: loss term 'context' is nan");
}

TEST_CASE("trainer: nothing is asked from the system after the third step") {
  Sizes sizes{.tokens = 40, .dropout = 0.1};
  Scratch scratch;
  Spy teacher(online(sizes));
  TrainerConfig config = six_steps();
  config.steps = 9;
  config.accumulate = 1;
  config.eval_every = config.save_every = 0;
  train(scratch / "run", sizes, &teacher, config);
  REQUIRE(teacher.system_calls.size() == 9);
  CHECK(teacher.system_calls[0] < teacher.system_calls[3]);  // the count counts
  for (size_t step = 4; step < 9; ++step) {
    CHECK(teacher.system_calls[step] == teacher.system_calls[3]);
  }
}

TEST_CASE("trainer: 1, 2 and 3 threads train to the same bits") {
  Sizes sizes{.tokens = 70, .windows = 4, .dropout = 0.1, .hidden = 48};
  Scratch scratch;
  TrainerConfig config = six_steps();
  config.steps = 2;
  config.eval_every = 0;
  for (int n : {1, 2, 3}) {
    Threads set(n);
    auto teacher = online(sizes);
    train(scratch / join("run", n), sizes, teacher.get(), config);
    if (n > 1) check_same_run(scratch / "run1", scratch / join("run", n), 2);
  }
}

}  // namespace brine::test
