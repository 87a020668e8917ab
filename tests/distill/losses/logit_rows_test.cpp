// Logits of some rows at a time: the terms and gradients of the whole ones, in less memory, and a
// teacher that keeps no more than it will be asked for.
#include "distill/losses/loss_table.h"
#include "tests/distill/losses/evaluated.h"
#include "tests/distill/setup.h"
#include "tests/messages.h"

namespace brine::test {
namespace {

// Notes the rows that were requested.
struct Asked : OnlineTeacher {
  using OnlineTeacher::OnlineTeacher;
  std::vector<std::pair<int64_t, int64_t>> rows;
  TopLogits logits(int64_t first, int64_t count) override {
    rows.emplace_back(first, count);
    return OnlineTeacher::logits(first, count);
  }
};

Evaluated evaluated_with(Pair& pair, Teacher& teacher, const Batch& batch, StepObjective::Call call,
                         const LossConfig& config = {}) {
  pair.store->zero_gradients();
  Evaluated out;
  Objective(*pair.student, &teacher, config).run(batch, call, out.terms);
  out.gradients = pair.store->gradients().clone();
  return out;
}

void check_same(const Evaluated& got, const Evaluated& wanted, double tolerance) {
  REQUIRE(got.terms.size() == wanted.terms.size());
  for (const auto& [name, value] : wanted.terms) {
    INFO(name);
    CHECK(got.terms.at(name) == doctest::Approx(value).epsilon(tolerance));
  }
  CHECK(close_to_scale(got.gradients, wanted.gradients, tolerance, "gradients"));
}

LossConfig of_logit_losses() {
  LossConfig config = task_only();
  config["kd_task"] = 1;
  return config;
}

// A teacher of many words or layers, and its student.
struct Large {
  Large(int64_t words, int64_t tokens, int64_t layers)
      : config(small_opt(words, tokens, 0.15, {{"num_hidden_layers", layers}})) {
    config.attention = "flash";
    teacher = nn::make_model(config, 1);
    student = nn::make_model(config, 2);
    store = std::make_unique<nn::ParameterStore>(*student);
    batch.ids = ids({1, tokens}, 5, words);
    batch.tokens = tokens;
  }
  nn::ModelConfig config;
  std::shared_ptr<nn::Model> teacher;
  std::unique_ptr<nn::Model> student;
  std::unique_ptr<nn::ParameterStore> store;
  Batch batch;
};

}  // namespace

TEST_CASE("logit rows: some at a time give the terms and gradients of all, in f64 and f32") {
  for (const auto& [dtype, tolerance] : {std::pair{Dtype::f64, 1e-10}, {Dtype::f32, 3e-6}}) {
    Pair pair({.dtype = dtype});
    for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{}, {16, 3, 11}}) {
      Batch batch = pair.source().in_order(0, 3);
      batch.lengths = lengths_of(lengths);
      if (!lengths.empty()) batch.tokens = 30;
      for (const LossConfig& config : {LossConfig(), of_logit_losses(), task_only()}) {
        Asked teacher(pair.teacher);
        const Evaluated whole = evaluated_with(
            pair, teacher, batch, {.share = 0.5, .loss_from = 2, .logit_rows = 48}, config);
        CHECK(whole.terms.at("task") > 0);
        CHECK(largest(whole.gradients.to_vector()) > 0);
        CHECK(teacher.rows.size() == (config["kd_task"] > 0 ? 1 : 0));
        for (int64_t rows : {1, 5, 16, 47}) {
          CAPTURE(rows);
          teacher.rows.clear();
          check_same(evaluated_with(pair, teacher, batch,
                                    {.share = 0.5, .loss_from = 2, .logit_rows = rows}, config),
                     whole, tolerance);
          if (config["kd_task"] == 0) continue;
          int64_t next = 0;
          for (const auto& [first, count] : teacher.rows) {
            CHECK(first == next);
            CHECK(count <= rows);
            next += count;
          }
          CHECK(next == 48);
        }
        const Evaluated again = evaluated_with(
            pair, teacher, batch,
            {.share = 0.5, .recompute = true, .loss_from = 2, .logit_rows = 5}, config);
        check_same(again, whole, tolerance);
      }
    }
  }
}

TEST_CASE("logit rows: a dump gives those of its samples") {
  Pair pair;
  Scratch scratch;
  const Batch batch = pair.source().batch(0, 3);
  for (int64_t top_n : {0, 8}) {
    CAPTURE(top_n);
    const std::string dir = (scratch / join("dump", top_n)).string();
    write_dump(pair, dir, data::DumpContent::none, top_n);
    DumpTeacher dumped(dir, expected_of(pair));
    OnlineTeacher online(pair.teacher, top_n);
    const Evaluated whole =
        evaluated_with(pair, online, batch, {.logit_rows = 48}, of_logit_losses());
    for (int64_t rows : {7, 48}) {
      check_same(evaluated_with(pair, dumped, batch, {.logit_rows = rows}, of_logit_losses()),
                 whole, 1e-5);
      check_same(evaluated_with(pair, online, batch, {.logit_rows = rows}, of_logit_losses()),
                 whole, 1e-6);
    }
  }
}

TEST_CASE("logit rows: a step never has the logits of all tokens") {
  const Large world(1 << 18, 100, 1);  // 100 MiB of logits
  const int64_t rows = world.student->rows_of_logits();
  CHECK(rows == 64);
  Asked teacher(world.teacher);
  Objective objective(*world.student, &teacher, of_logit_losses());
  LossTerms terms;
  objective.run(world.batch, {}, terms);
  CHECK(teacher.rows == std::vector<std::pair<int64_t, int64_t>>{{0, 64}, {64, 36}});
  auto peak = [&](int64_t at_once) {
    reset_peak();
    const int64_t before = allocator_stats().live;
    objective.run(world.batch, {.logit_rows = at_once}, terms);
    return double(allocator_stats().peak_live - before);
  };
  const double one_row = 4 * double(1 << 18);
  CHECK(peak(10) < 45 * one_row);  // the student's and the teacher's, and one gradient
  CHECK(peak(100) > 180 * one_row);
}

TEST_CASE("logit rows: a NaN is found in every part, and its row is named") {
  Pair pair;
  const Batch batch = pair.source().in_order(2, 3);
  for (int64_t row : {0, 21, 47}) {
    Unsound teacher(pair.teacher, 5, row, NAN);
    const std::string said = message(
        [&] { evaluated_with(pair, teacher, batch, {.logit_rows = 10}, of_logit_losses()); });
    CHECK(contains(said, join("the teacher's logits at token ", row % 16, " of window ",
                              2 + row / 16, " are not finite")));
  }
}

TEST_CASE("logit rows: the teacher keeps inputs of layers only for layers that will be asked for") {
  const Large world(37, 512, 12);
  OnlineTeacher teacher(world.teacher);
  const double input = 512 * 24 * 4;
  auto kept = [&](const TeacherNeeds& needs, auto use) {
    teacher.require(needs);
    const int64_t before = allocator_stats().live;
    NoGrad off;
    teacher.begin(world.batch);
    use();
    return double(allocator_stats().live - before) / input;
  };
  auto logits = [&] { teacher.logits(0, 512); };
  teacher.begin(world.batch);
  logits();  // what a batch leaves behind
  CHECK(kept({{data::part::logits, {"kd_task"}}}, logits) < 1);
  CHECK(kept({{data::part::layer_outputs, {"kd"}}, {data::part::logits, {"kd_task"}}}, logits) >
        10);
  CHECK(kept({{data::part::layer_outputs, {"kd"}}}, [&] {
          for (int64_t i = 11; i >= 0; --i) teacher.layer(i);
        }) < 1);
  CHECK(kept({{data::part::layer_outputs, {"kd"}}}, [&] {
          for (int64_t i = 0; i < 12; ++i) teacher.layer(i);
        }) < 1);
  CHECK(contains(message([&] { teacher.layer(3); }), "layer 3 was requested after layer 11"));
}

}  // namespace brine::test
