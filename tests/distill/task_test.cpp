// Tasks: batches with padding, their losses, answers, a training that learns and resumes.
#include <cmath>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "data/checkpoint/checkpoint.h"
#include "data/io/file_io.h"
#include "distill/teachers/dump_batch.h"
#include "distill/teachers/dump_teacher.h"
#include "tests/distill/losses/evaluated.h"
#include "tests/distill/runs.h"
#include "tests/distill/task_setup.h"
#include "tests/messages.h"

namespace brine::test {
namespace {

Evaluated evaluated(Encoder& student, Teacher* teacher, const LossConfig& losses,
                    const std::vector<Batch>& batches) {
  student.store->zero_gradients();
  Objective objective(*student.model, teacher, losses);
  double rows = 0, texts = 0;
  for (const Batch& b : batches) {
    rows += double(b.tokens);
    texts += double(b.ids.dim(0));
  }
  Evaluated out;
  for (const Batch& b : batches) {
    objective.run(b, {.share = double(b.tokens) / rows, .text_share = double(b.ids.dim(0)) / texts},
                  out.terms);
  }
  out.gradients = student.store->gradients().clone();
  return out;
}

// Class logits [B, n] in double, computed from the batch's texts one at a time, unpadded.
std::vector<double> logits_of(nn::Model& model, const TaskSource& source,
                              const std::vector<int64_t>& texts) {
  NoGrad off;
  std::vector<double> out;
  for (int64_t i : texts) {
    const data::TextTokens& text = source.tokens().texts[size_t(i)];
    int64_t L = int64_t(text.ids.size());
    Tensor types = Tensor::zeros({1, L}, Dtype::i32);
    for (int64_t t = text.first; t < L; ++t) types.data<int32_t>()[t] = 1;
    Tensor hidden =
        model.hidden({.ids = Tensor::from(text.ids, {1, L}), .type_ids = types}).detach();
    for (double x : model.class_logits(hidden).detach().to_vector()) out.push_back(x);
  }
  return out;
}

}  // namespace

TEST_CASE("task: batches are padded to their longest text; segments and targets") {
  auto tokens = letter_tokens(50);
  TaskSource source(tokens, 3);
  CHECK(source.size() == 50);
  CHECK(source.window() == 12);  // [CLS] a....... [SEP] b [SEP]
  int shorter = 0;
  for (int64_t n = 0; n < 20; ++n) {
    Batch b = source.batch(n, 4);
    CHECK(b.windows == source.windows_of(n, 4));
    CHECK(b.of_task());
    CHECK_FALSE(b.scores.defined());
    int64_t T = b.ids.dim(1), sum = 0, longest = 0;
    shorter += T < source.window();
    for (int64_t i = 0; i < 4; ++i) {
      const data::TextTokens& text = tokens->texts[size_t(b.windows[size_t(i)])];
      int64_t L = int64_t(text.ids.size());
      CHECK(b.lengths.data<int64_t>()[i] == L);
      sum += L;
      longest = std::max(longest, L);
      for (int64_t t = 0; t < T; ++t) {
        CHECK(b.ids.data<int32_t>()[i * T + t] == (t < L ? text.ids[size_t(t)] : 0));
        CHECK(b.type_ids.data<int32_t>()[i * T + t] == (t >= text.first && t < L));
      }
      CHECK(double(b.classes.data<int32_t>()[i]) == tokens->targets[size_t(b.windows[size_t(i)])]);
    }
    CHECK(b.tokens == sum);
    CHECK(T >= longest);
    CHECK(T < longest + 8);
  }
  CHECK(shorter > 0);
  std::unique_ptr<BatchSource> twin = source.clone();
  CHECK(twin->windows_of(17, 4) == source.windows_of(17, 4));
}

TEST_CASE("task: losses of classes and scores as computed by hand") {
  for (bool regression : {false, true}) {
    CAPTURE(regression);
    int64_t labels = regression ? 1 : 2;
    Encoder student("dense", labels, 0, 1), teacher("dense", labels, 0, 2);
    OnlineTeacher online(teacher.model);
    TaskSource source(letter_tokens(9, regression), 3);
    std::vector<int64_t> texts(9);
    std::iota(texts.begin(), texts.end(), 0);
    Batch batch = source.gather(texts);
    std::vector<double> s = logits_of(*student.model, source, texts),
                        t = logits_of(*teacher.model, source, texts);
    double task = 0, kd = 0;
    for (size_t i = 0; i < 9; ++i) {
      double target = source.tokens().targets[i];
      if (regression) {
        task += (s[i] - target) * (s[i] - target) / 9;
        kd += (s[i] - t[i]) * (s[i] - t[i]) / 9;
        continue;
      }
      double ls = std::log(std::exp(s[2 * i]) + std::exp(s[2 * i + 1]));
      double lt = std::log(std::exp(t[2 * i]) + std::exp(t[2 * i + 1]));
      task += (ls - s[2 * i + size_t(target)]) / 9;
      for (size_t c : {2 * i, 2 * i + 1}) {
        kd += std::exp(t[c] - lt) * ((t[c] - lt) - (s[c] - ls)) / 9;
      }
    }
    LossConfig losses = task_only();
    losses["task"] = 0.3;
    losses["kd_task"] = 0.7;
    LossTerms terms = evaluated(student, &online, losses, {batch}).terms;
    CHECK(terms.at("task_loss") == doctest::Approx(task).epsilon(1e-5));
    CHECK(terms.at("task") == doctest::Approx(0.3 * task).epsilon(1e-5));
    CHECK(terms.at("kd_task") == doctest::Approx(0.7 * kd).epsilon(1e-4));
    CHECK(terms.at("loss") == doctest::Approx(0.3 * task + 0.7 * kd).epsilon(1e-5));
  }
}

TEST_CASE("task: all terms of a SEA student; micro-batches weigh by tokens and by texts") {
  Encoder teacher("dense", 2, 0, 2), student("sea", 2, 0, 5);
  OnlineTeacher online(teacher.model);
  TaskSource source(letter_tokens(12), 3);
  std::vector<int64_t> order, rest;
  for (auto& numbers : source.in_order(4))
    order.insert(order.end(), numbers.begin(), numbers.end());
  Batch whole = source.gather(order);
  // The shortest four and the longest eight: neither tokens nor padding are in proportion.
  Batch few = source.gather({order.begin(), order.begin() + 4});
  Batch many = source.gather({order.begin() + 4, order.end()});
  CHECK(few.ids.dim(1) < many.ids.dim(1));
  LossConfig all;
  all["task"] = 0.5;
  Evaluated one = evaluated(student, &online, all, {whole});
  Evaluated two = evaluated(student, &online, all, {few, many});
  for (const char* name : {"approx", "prob", "context", "kd", "kd_task", "task", "loss"}) {
    CAPTURE(name);
    CHECK(one.terms.at(name) > 0);
    CHECK(two.terms.at(name) == doctest::Approx(one.terms.at(name)).epsilon(1e-5));
  }
  CHECK(close_to_scale(two.gradients, one.gradients, 1e-4, "gradients"));
}

TEST_CASE("task: answers do not depend on batches; keys kept are counted") {
  TaskSource source(letter_tokens(30), 3);
  std::vector<int64_t> texts(30);
  std::iota(texts.begin(), texts.end(), 0);
  double tokens = 0, visible = 0, kept = 0;
  for (const data::TextTokens& text : source.tokens().texts) {
    double L = double(text.ids.size());
    tokens += L;
    visible += L * L;
    kept += L <= 4 ? L * L : 0;
  }
  for (const char* attention : {"dense", "sea"}) {
    CAPTURE(attention);
    Encoder encoder(attention, 2);
    std::vector<double> logits = logits_of(*encoder.model, source, texts);
    TaskAnswers by7 = answer(*encoder.model, source, {.batch_size = 7});
    TaskAnswers by1 = answer(*encoder.model, source, {.batch_size = 1});
    CHECK(by7.predictions == by1.predictions);
    for (size_t i = 0; i < 30; ++i) {
      double d = logits[2 * i + 1] - logits[2 * i];
      CHECK(by7.predictions[i] == double(d > 0));
      CHECK(by7.probabilities[2 * i + (d > 0)] ==
            doctest::Approx(1 / (1 + std::exp(-std::fabs(d)))).epsilon(1e-5));
    }
    CHECK(by7.mean_length == doctest::Approx(tokens / 30));
    REQUIRE(by7.kept_keys.has_value());
    if (std::string(attention) == "dense") {
      CHECK(*by7.kept_keys == 1);
    } else {  // k = 4 keys of L, but in whole columns: somewhat more or less
      double expected = (kept + 4 * tokens) / visible;
      CHECK(*by7.kept_keys > 0.6 * expected);
      CHECK(*by7.kept_keys < 1.4 * expected);
      TaskAnswers fewer = answer(*encoder.model, source, {.options = {.k = 2}});
      CHECK(*fewer.kept_keys < 0.8 * *by7.kept_keys);
    }
    // Part of the texts, evenly; classes under the task's numbers.
    TaskAnswers some = answer(*encoder.model, source, {.max_texts = 10, .classes = {1, 0}});
    REQUIRE(some.texts.size() == 10);
    for (size_t i = 0; i < 10; ++i) {
      CHECK(some.texts[i] == int64_t(3 * i));
      CHECK(some.predictions[i] == 1 - by7.predictions[3 * i]);
    }
  }
  Encoder broken("dense", 2);
  for (NamedTensor& t : nn::state_of(*broken.model)) {
    if (t.name == "classifier.bias") t.tensor.data<float>()[1] = NAN;
  }
  CHECK(message([&] { answer(*broken.model, source, {}); }).find("are not finite") !=
        std::string::npos);
  Encoder three("dense", 3);
  CHECK_THROWS_WITH_AS(answer(*three.model, source, {}), "task: the model has 3 labels, the task 2",
                       Error);
}

namespace {

TrainerConfig schedule(int64_t steps) {
  TrainerConfig c;
  c.steps = steps;
  c.batch_size = 8;
  c.accumulate = 2;
  c.save_every = 5;
  c.keep = 0;
  c.optimizer.learning_rate = c.optimizer.attention_learning_rate = 3e-3;
  return c;
}

void train(const fs::path& dir, Encoder& e, Teacher* teacher, bool regression,
           const TrainerConfig& config, bool resume) {
  TaskSource source(letter_tokens(40, regression), 3);
  data::Task task = letter_task(regression);
  TrainerParts parts{
      .config = e.config,
      .model = borrowed(e.model.get()),
      .store = std::move(e.store),
      .teacher = borrowed(teacher),
      .train = std::make_unique<TaskSource>(source),
      .evaluation = [&] { return score_answers(task, source, answer(*e.model, source, {})); },
      .losses = teacher ? LossConfig{} : task_only(),
      .trainer = config};
  Trainer trainer(parts, {.run_dir = dir.string(), .configuration = "{}", .seed = 11});
  run_in(dir, trainer, resume);
}

}  // namespace

TEST_CASE("task: an encoder learns classes and scores") {
  for (bool regression : {false, true}) {
    CAPTURE(regression);
    Scratch scratch;
    Encoder e("dense", regression ? 1 : 2);
    TaskSource source(letter_tokens(40, regression), 3);
    data::Task task = letter_task(regression);
    double before = score_answers(task, source, answer(*e.model, source, {}))[0].second;
    CHECK(before < 0.9);
    train(scratch.path(), e, nullptr, regression, schedule(120), false);
    double after = score_answers(task, source, answer(*e.model, source, {}))[0].second;
    CHECK(after > 0.99);
    std::string log = data::read_file(scratch / "log.jsonl");
    CHECK(log.find(regression ? "\"pearson\"" : "\"accuracy\"") != std::string::npos);
    CHECK(log.find("\"task_loss\"") != std::string::npos);
  }
}

TEST_CASE("task: a distillation with dropout resumes to the bit") {
  Scratch scratch;
  fs::path whole = scratch / "whole", parts = scratch / "parts";
  auto run = [](const fs::path& dir, int64_t steps, bool resume) {
    Encoder teacher("dense", 2, 0, 2), student("sea", 2, 0.1, 5);
    OnlineTeacher online(teacher.model);
    train(dir, student, &online, false, schedule(steps), resume);
  };
  run(whole, 10, false);
  run(parts, 5, false);
  run(parts, 10, true);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    CAPTURE(name);
    CHECK(data::read_file(data::checkpoint_path(whole, 10) / name) ==
          data::read_file(data::checkpoint_path(parts, 10) / name));
    CHECK(data::read_file(data::checkpoint_path(whole, 10) / name) !=
          data::read_file(data::checkpoint_path(whole, 5) / name));
  }
}

TEST_CASE(
    "tasks: a padded dump of some texts of a split, as Python writes it, gives their losses") {
  Encoder teacher("flash", 2), student("sea", 2, 0, 2);
  const auto split = letter_tokens(9);
  const TaskSource all(split, 3);
  const std::vector<int64_t> texts = {5, 1, 3};
  Batch batch = all.gather(texts);
  Scratch scratch;
  const std::string dir = (scratch / "dump").string();
  const nn::ModelShape shape = teacher.model->shape();
  data::DumpSpec spec{.dtype = Dtype::f32,
                      .causal = false,
                      .layers = 2,
                      .heads = 3,
                      .head_size = 8,
                      .key_heads = 3,
                      .hidden = 24,
                      .tokens = batch.ids.dim(1),
                      .vocab = 260,
                      .logits = data::DumpLogits::none,
                      .top_n = 0,
                      .classes = 2,
                      .stores_tokens = true,
                      .teacher_hash = data::kNoHash,
                      .tokenizer_hash = data::kNoHash,
                      .samples = 3,
                      .windows = texts};
  {
    NoGrad off;
    OnlineTeacher online(teacher.model);
    Downloads arriving;
    data::DumpWriter writer(dir, spec);
    writer.put(dump_batch(online, batch, spec, arriving), std::move(arriving));
    writer.finish();
  }
  const DumpTeacher::Expected expected{.source = {}, .window = 0, .shape = shape};
  DumpTeacher dumped(dir, expected);
  const auto part = dumped.texts(split);
  REQUIRE(part->texts.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const size_t text = std::vector<size_t>{1, 3, 5}[i];
    CHECK(part->texts[i].ids == split->texts[text].ids);
    CHECK(part->targets[i] == split->targets[text]);
  }
  const TaskSource source(part, 3);
  // Shorter than the dump's longest sample, too.
  for (const std::vector<int64_t>& numbers : {std::vector<int64_t>{2, 0, 1}, {0}, {1}}) {
    Batch of_part = source.gather(numbers);
    dumped.check_sample(teacher.model, source.gather({numbers[0]}));
    auto terms_of = [&](Teacher& from, const Batch& of) {
      Objective objective(*student.model, &from, {});
      student.store->zero_gradients();
      LossTerms terms;
      objective.run(of, {}, terms);
      return terms;
    };
    OnlineTeacher online(teacher.model);
    const LossTerms a = terms_of(dumped, of_part), b = terms_of(online, of_part);
    for (const auto& [name, value] : b)
      CHECK_MESSAGE(a.at(name) == doctest::Approx(value).epsilon(1e-5), name);
  }
  const std::string other = message([&] { DumpTeacher(dir, expected).texts(letter_tokens(4)); });
  CHECK(contains(other, "sample 0 is text 5 of the split, which has 4"));
}

}  // namespace brine::test
