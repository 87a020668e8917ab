// The defaults of a distillation by stage, method, task and teacher, and what they leave alone.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "distill/losses/loss_table.h"
#include "tests/distill/attention_keys.h"
#include "tests/messages.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::distill;
using namespace brine::test;

namespace {

Distillation resolved(Distillation what, const TeacherFacts& facts = {}) {
  what.resolve(facts);
  return what;
}

Distillation of_recipe(Recipe name, const std::string& task = "") {
  Distillation what;
  what.recipe = name;
  what.task.task = task;
  return what;
}

Distillation of_stages(Stages stages, const std::string& method = "sea") {
  Distillation what;
  what.stages = stages;
  what.student.attention = method;
  return what;
}

data::Json attention_of(const Distillation& what) {
  data::Schema keys;
  what.student.method().describe(keys);
  return keys.to_json();
}

constexpr TeacherFacts kEncoder = {.causal = false, .massive = {}};

}  // namespace

TEST_CASE("defaults: without a recipe it is short: rates decay, the estimator learns fast") {
  Distillation what = resolved({});
  CHECK(what.stages == Stages::joint);
  CHECK(what.recipe == Recipe::short_run);
  const TrainerConfig c = what.training.resolved();
  CHECK(c.schedule.schedule == nn::Decay::linear);
  CHECK(c.optimizer.learning_rate == 3e-4);
  CHECK(c.optimizer.attention_learning_rate == 1e-2);
  CHECK(c.steps == 1000);
  CHECK(c.batch_size == 4);
  CHECK_FALSE(what.mixes());
  CHECK(what.lora_rank == 0);
  CHECK(what.losses.config()["approx"] == 20);
  CHECK(attention_of(what)["preset"] == "light");
  CHECK(attention_of(what)["decoder"] == "none");
  CHECK(attention_of(what)["columns"] == 256);
}

TEST_CASE("defaults: of stage attention, of stage joint after it, and of blocks") {
  const TeacherFacts small = {.positions = 100, .massive = {}},
                     large = {.positions = 8192, .massive = {}};
  Distillation sea = resolved(of_stages(Stages::attention), large);
  CHECK(sea.text.lengths == "512,1024,2048");
  CHECK(sea.text.retrieval_share == 0.25);
  CHECK(sea.training.steps == 200);
  CHECK(sea.losses["approx"] == 10);
  CHECK(sea.losses["context"] == 1);
  CHECK_FALSE(sea.losses["kd"].has_value());
  CHECK_FALSE(sea.joint.training.steps.has_value());
  CHECK(attention_of(sea)["preset"] == "light");
  Distillation low = of_stages(Stages::both);
  low.lora_rank = 4;
  low.joint.losses["kd"] = 2;
  low.resolve(small);
  CHECK(low.text.lengths == "100");
  CHECK(low.joint.training.learning_rate == 1e-4);
  CHECK(low.joint.training.steps == 300);
  for (const Loss& loss : losses()) {
    const double weight = loss.name == "kd" ? 2 : loss.name == "approx" || loss.name == "kd_task";
    CHECK_MESSAGE(low.joint.losses[loss.name] == weight, loss.name);
  }
  CHECK(resolved(of_stages(Stages::both)).joint.training.learning_rate == 0);
  CHECK(resolved(of_stages(Stages::attention), kEncoder).training.steps == 200);

  Distillation calibrated;
  calibrated.student.attention = "blocks";
  calibrated.resolve(large);
  CHECK(calibrated.stages == Stages::attention);
  CHECK(calibrated.text.lengths == "8192");
  CHECK(calibrated.training.steps == 1);
  CHECK(calibrated.losses["context"] == 0);
  Distillation blocks = resolved(of_stages(Stages::both, "blocks"), small);
  CHECK(blocks.joint.training.steps == 24);
  CHECK(blocks.lora_rank == 16);
  CHECK(blocks.joint.training.learning_rate == 3e-4);
  CHECK(blocks.joint.training.recompute == true);
  CHECK(blocks.joint.losses["approx"] == 0);
  Distillation alone =
      resolved(of_stages(Stages::joint, "blocks"), {.positions = 9000, .massive = {}});
  CHECK(alone.text.lengths == "8192");
  CHECK(alone.training.steps == 24);
  CHECK(alone.losses["kd_task"] == 1);
  Distillation whole = of_stages(Stages::joint, "blocks");
  whole.training.learning_rate = 1e-5;
  CHECK(resolved(whole).lora_rank == 0);
  CHECK_REFUSES(resolved(of_stages(Stages::joint, "blocks"), kEncoder), "blocks", "encoder",
                "causal");
}

TEST_CASE("defaults: which lengths of an encoder gain no time") {
  auto note = [](Distillation what, TeacherFacts facts) {
    facts.positions = 4096;
    what.resolve(facts);
    return what.no_gain(facts);
  };
  auto texts = [](int64_t tokens) { return TeacherFacts{.causal = false, .text_tokens = tokens}; };
  Distillation task = of_recipe(Recipe::short_run), paper = of_recipe(Recipe::paper), other, given;
  task.task.task = paper.task.task = other.task.task = given.task.task = "cola";
  other.student.attention = "performer";
  set_attention(given, "decoder", "paper");
  check_says(note(task, texts(699)), {"not shorter", "at most 699 tokens", "light", "about 700"});
  CHECK(note(task, texts(700)).empty());
  CHECK(note(task, {.causal = true, .text_tokens = 20}).empty());
  check_says(note(paper, texts(2299)), {"at most 2299", "the paper's estimator", "about 2300"});
  check_says(note(given, texts(700)), {"about 2300"});
  CHECK(note(paper, texts(2300)).empty());
  CHECK(note(other, texts(20)).empty());
  // Without texts the windows count.
  Distillation windows = of_recipe(Recipe::short_run);
  windows.training.sequence_length = 512;
  check_says(note(windows, {.causal = false}), {"windows have 512 tokens", "about 2300"});
}

TEST_CASE("defaults: what was set before stays, whatever the recipe") {
  for (const auto& known : kRecipes) {
    INFO(known.name);
    Distillation what = of_recipe(known.value);
    what.training.steps = 3;
    what.training.learning_rate = 0.5;
    what.training.recompute = true;
    what.training.schedule = nn::Decay::cosine;
    what.losses["approx"] = 7;
    what.losses["kd"] = 0;
    set_attention(what, "decoder", "none");
    set_attention(what, "k", "5");
    what.resolve({});
    const TrainerConfig c = what.training.resolved();
    CHECK(c.steps == 3);
    CHECK(c.optimizer.learning_rate == 0.5);
    CHECK(c.recompute);
    CHECK(c.schedule.schedule == nn::Decay::cosine);
    CHECK(what.losses.config()["approx"] == 7);
    CHECK(what.losses.config()["kd"] == 0);
    CHECK(attention_of(what)["decoder"] == "none");
    CHECK(attention_of(what)["k"] == 5);
    // Other settings of a block whose decoder was chosen are the method's defaults.
    CHECK(attention_of(what)["gates"] == "token");
    CHECK(attention_of(what)["pooled_prior"] == false);
  }
}

TEST_CASE("defaults: students of tasks are light; an encoder's on text has a decoder") {
  CHECK(attention_of(resolved({}, kEncoder))["decoder"] == "paper");
  const data::Json task = attention_of(resolved(of_recipe(Recipe::short_run, "mrpc"), kEncoder));
  CHECK(task["preset"] == "light");
  CHECK(task["columns"] == 64);
  CHECK(task["gate_bias"] == 2);
}

TEST_CASE("defaults: a run that continues keeps its recipe and the weight of kd, unless given") {
  const data::Json stored = {{"recipe", "paper"}, {"losses", {{"kd", 0.5}, {"approx", 7}}}};
  Distillation r, other;
  r.keep(stored);
  r.resolve({});
  CHECK(r.recipe == Recipe::paper);
  CHECK(r.losses["kd"] == 0.5);
  CHECK(r.losses["approx"] == 1);
  other.recipe = Recipe::short_run;
  other.losses["kd"] = 2;
  other.keep(stored);
  CHECK(other.recipe == Recipe::short_run);
  CHECK(other.losses["kd"] == 2);
  Distillation fresh;
  fresh.keep(nullptr);  // no checkpoint that can be read
  CHECK_FALSE(fresh.recipe.has_value());
}

TEST_CASE("defaults: k of a task by its texts, of a new student alone") {
  const TeacherFacts facts = {.causal = false, .text_tokens = 18, .massive = {}};
  Distillation on_task = of_recipe(Recipe::short_run, "cola"), of_dump, further = on_task;
  of_dump.dumped_texts = true;
  further.model = "student";
  CHECK(on_task.resolve(facts).at(0).text.starts_with(
      "attention.k is 5, a quarter of the tokens of cola's longer texts"));
  CHECK(of_recipe(Recipe::short_run, "cola").resolve(facts).at(0).warns);
  CHECK(of_dump.resolve(facts).back().text.starts_with(
      "attention.k is 5, a quarter of the tokens of its longer texts"));
  CHECK(further.resolve(facts).empty());
}

TEST_CASE("defaults: a method without SEA's keys keeps its own") {
  Distillation what = of_recipe(Recipe::paper);
  what.student.attention = "recent";
  what.resolve({});
  CHECK_FALSE(attention_of(what).contains("decoder"));
}

TEST_CASE("defaults: losses that the run cannot have are 0 unless they were set") {
  Distillation self{.teacher = "self"};
  self.losses["kd"] = 2;
  self.resolve({});
  CHECK(self.losses["prob"] == 0);
  CHECK(self.losses["context"] == 0);
  CHECK(self.losses["kd"] == 2);
  CHECK(self.losses["kd_task"] == 0);
  CHECK(self.losses["approx"] == 20);
  CHECK(self.losses["task"] == 0.1);
  const TeacherFacts facts = {.pooled = 12, .massive = {}};
  Distillation pooled, kept;
  CHECK(pooled.resolve(facts).size() == 2);
  CHECK(pooled.losses["prob"] == 0);
  CHECK(pooled.losses["context"] == 1);
  CHECK(attention_of(pooled)["columns"] == 12);
  kept.mask.columns = 9;
  kept.losses["prob"] = 1;
  CHECK(kept.resolve(facts).empty());
  CHECK(kept.losses["prob"] == 1);
  CHECK(attention_of(kept)["columns"] == 9);
}

TEST_CASE("defaults: the steps of a task follow from its epochs, or from recipe short") {
  CHECK(resolved(of_recipe(Recipe::short_run, "cola"), kEncoder).training.steps == 300);
  Distillation epochs = of_recipe(Recipe::short_run, "cola");
  epochs.epochs = 2;
  epochs.resolve(kEncoder);
  CHECK_FALSE(epochs.training.steps.has_value());
  epochs.training.plan_epochs(*epochs.epochs, 0.1, 100);
  const TrainerConfig c = epochs.training.resolved();
  CHECK(c.batch_size == 32);
  CHECK(c.steps == 7);  // ceil(200 / 32)
  CHECK(c.schedule.warmup_steps == 1);
  CHECK(c.eval_every == 4);
  const Distillation paper = resolved(of_recipe(Recipe::paper, "mnli"), kEncoder);
  CHECK(paper.epochs == 20);
  CHECK(paper.training.batch_size == 16);
  CHECK_FALSE(paper.training.steps.has_value());
  for (const int64_t positions : {128, 512}) {
    const TeacherFacts facts = {.causal = false, .positions = positions, .massive = {}};
    CHECK(resolved(of_recipe(Recipe::paper, "mnli"), facts).training.sequence_length ==
          std::min<int64_t>(positions, 256));
  }
}

TEST_CASE("defaults: resolving twice is resolving once") {
  std::vector<Distillation> all(5);
  all[1] = of_recipe(Recipe::short_run, "cola");
  all[2] = of_stages(Stages::both);
  all[3] = of_stages(Stages::both, "blocks");
  all[4] = of_stages(Stages::joint, "blocks");
  for (Distillation& what : all) {
    const TeacherFacts facts = {.causal = !what.on_task(), .massive = {}};
    what.resolve(facts);
    const std::string once = data::schema_of(what).to_toml();
    what.resolve(facts);
    CHECK(data::schema_of(what).to_toml() == once);
  }
}

TEST_CASE("defaults: keys of a configuration are settings that are decided") {
  Distillation what;
  data::Schema keys = data::schema_of(what);
  keys.set_all(data::Json::parse(
      R"({"recipe": "paper", "batch_size": 2, "attention": {"prior": "performer"}})"));
  CHECK(what.recipe == Recipe::paper);
  CHECK(what.attention_keys == std::set<std::string>{"prior"});
  what.resolve({});
  CHECK(what.training.batch_size == 2);
  CHECK(what.training.steps == 10'000);
  CHECK(attention_of(what)["prior"] == "performer");
  CHECK(attention_of(what)["feature_divisor"] == 8.0);
  CHECK(keys.to_json()["optimizer"]["learning_rate"] == 2e-6);  // the schema shows what was decided
  CHECK(message([] { TrainingSettings().resolved(); }) == "training: steps is not decided");
}

TEST_CASE("defaults: kd is left out where a teacher has massive activations, unless it is given") {
  const TeacherFacts facts{.massive = "feature 3 of the first token is 900"};
  Distillation what, given, paper = of_recipe(Recipe::paper);
  const std::vector<Decision> notes = what.resolve(facts);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].text.find("(feature 3 of the first token is 900)") != std::string::npos);
  CHECK(notes[0].text.find("losses.kd is 0") != std::string::npos);
  CHECK(what.losses["kd"] == 0);
  CHECK(resolved({}).losses["kd"] == 5);
  given.losses["kd"] = 2;
  CHECK(given.resolve(facts).empty());
  CHECK(given.losses["kd"] == 2);
  CHECK(paper.resolve(facts).empty());
  CHECK(paper.losses["kd"] == 5);
}
