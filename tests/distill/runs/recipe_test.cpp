// Recipes: where each setting is decided, and that every setting is decided in the end.
#include "distill/runs/settings/recipe.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/distill/attention_keys.h"
#include "tests/messages.h"

using namespace brine;
using namespace brine::distill;
using brine::test::message;
using brine::test::set_attention;

namespace {

Recipe resolved(Recipe recipe, const RunFacts& facts = {}) {
  recipe.resolve(facts);
  return recipe;
}

Recipe named(RecipeName name) {
  Recipe recipe;
  recipe.name = name;
  return recipe;
}

data::Json attention_of(const Recipe& recipe) {
  data::Schema keys;
  recipe.student.method().describe(keys);
  return keys.to_json();
}

}  // namespace

TEST_CASE("recipe: without a name it is short, whose rate decays and whose estimator learns fast") {
  const Recipe r = resolved({});
  CHECK(r.name == RecipeName::short_run);
  const TrainerConfig c = r.training.resolved();
  CHECK(c.schedule.schedule == nn::Decay::linear);
  CHECK(c.optimizer.learning_rate == 3e-4);
  CHECK(c.optimizer.attention_learning_rate == 1e-2);
  CHECK(c.steps == 1000);
  CHECK(c.batch_size == 4);
  CHECK(r.losses.resolved()["approx"] == 20);
  CHECK(attention_of(r)["preset"] == "light");
  CHECK(attention_of(r)["decoder"] == "none");
  CHECK(attention_of(r)["columns"] == 256);
}

TEST_CASE("recipe: what was set before stays, whatever the recipe") {
  for (const auto& known : kRecipeNames) {
    INFO(known.name);
    Recipe r = named(known.value);
    r.training.steps = 3;
    r.training.learning_rate = 0.5;
    r.training.recompute = true;
    r.training.schedule = nn::Decay::cosine;
    r.losses["approx"] = 7;
    r.losses["kd"] = 0;
    set_attention(r, "decoder", "none");
    set_attention(r, "k", "5");
    r.resolve({});
    const TrainerConfig c = r.training.resolved();
    CHECK(c.steps == 3);
    CHECK(c.optimizer.learning_rate == 0.5);
    CHECK(c.recompute);
    CHECK(c.schedule.schedule == nn::Decay::cosine);
    CHECK(r.losses.resolved()["approx"] == 7);
    CHECK(r.losses.resolved()["kd"] == 0);
    CHECK(attention_of(r)["decoder"] == "none");
    CHECK(attention_of(r)["k"] == 5);
    // Other settings of a block whose decoder was chosen are the method's defaults.
    CHECK(attention_of(r)["gates"] == "token");
    CHECK(attention_of(r)["pooled_prior"] == false);
  }
}

TEST_CASE("recipe: students of causal models and of tasks are light, others have a decoder") {
  CHECK(attention_of(resolved({}, {.causal = false}))["decoder"] == "paper");
  const data::Json task = attention_of(resolved({}, {.causal = false, .task = "mrpc"}));
  CHECK(task["preset"] == "light");
  CHECK(task["columns"] == 64);
  CHECK(task["gate_bias"] == 2);
  CHECK(attention_of(resolved({}, {.causal = true}))["decoder"] == "none");
}

TEST_CASE("recipe: a run that continues keeps its recipe and the weight of kd, unless given") {
  const data::Json stored = {{"recipe", "paper"}, {"losses", {{"kd", 0.5}, {"approx", 7}}}};
  Recipe r, other;
  r.keep(stored);
  r.resolve({});
  CHECK(r.name == RecipeName::paper);
  CHECK(r.losses["kd"] == 0.5);
  CHECK(r.losses["approx"] == 1);
  other.name = RecipeName::short_run;
  other.losses["kd"] = 2;
  other.keep(stored);
  CHECK(other.name == RecipeName::short_run);
  CHECK(other.losses["kd"] == 2);
  Recipe fresh;
  fresh.keep(nullptr);  // no checkpoint that can be read
  CHECK_FALSE(fresh.name.has_value());
}

TEST_CASE("recipe: a method without a recipe's keys keeps its own") {
  Recipe r = named(RecipeName::paper);
  r.student.attention = "recent";
  const data::Json before = attention_of(r);
  r.resolve({});
  CHECK_FALSE(before.contains("decoder"));
  CHECK_FALSE(attention_of(r).contains("decoder"));
}

TEST_CASE("recipe: losses that the run cannot have are 0 unless they were set") {
  Recipe r;
  r.losses["kd"] = 2;
  r.resolve({.self_taught = true});
  CHECK(r.losses["prob"] == 0);
  CHECK(r.losses["context"] == 0);
  CHECK(r.losses["kd"] == 2);
  CHECK(r.losses["kd_task"] == 0);
  CHECK(r.losses["approx"] == 20);
  CHECK(r.losses["task"] == 0.1);
  Recipe pooled, kept;
  CHECK(pooled.resolve({.pooled = 12}).size() == 2);
  CHECK(pooled.losses["prob"] == 0);
  CHECK(pooled.losses["context"] == 1);
  CHECK(attention_of(pooled)["columns"] == 12);
  kept.mask.columns = 9;
  kept.losses["prob"] = 1;
  CHECK(kept.resolve({.pooled = 12}).empty());
  CHECK(kept.losses["prob"] == 1);
  CHECK(attention_of(kept)["columns"] == 9);
}

TEST_CASE("recipe: the steps of a task follow from its epochs, or from recipe short") {
  Recipe fast = resolved({}, {.causal = false, .task = "cola"});
  CHECK(fast.training.steps == 300);
  Recipe epochs;
  epochs.epochs = 2;
  epochs.resolve({.causal = false, .task = "cola"});
  CHECK_FALSE(epochs.training.steps.has_value());
  epochs.training.plan_epochs(*epochs.epochs, 0.1, 100);
  const TrainerConfig c = epochs.training.resolved();
  CHECK(c.batch_size == 32);
  CHECK(c.steps == 7);  // ceil(200 / 32)
  CHECK(c.schedule.warmup_steps == 1);
  CHECK(c.eval_every == 4);
  Recipe paper = resolved(named(RecipeName::paper), {.causal = false, .task = "mnli"});
  CHECK(paper.epochs == 20);
  CHECK(paper.training.batch_size == 16);
  CHECK_FALSE(paper.training.steps.has_value());
}

TEST_CASE("recipe: resolving twice is resolving once") {
  for (const char* task : {"", "cola"}) {
    const RunFacts facts{.causal = *task == 0, .task = task};
    Recipe r = resolved({}, facts);
    const std::string once = data::schema_of(r).to_toml();
    r.resolve(facts);
    CHECK(data::schema_of(r).to_toml() == once);
  }
}

TEST_CASE("recipe: keys of a configuration are settings that are decided") {
  Recipe r;
  data::Schema keys = data::schema_of(r);
  keys.set_all(data::Json::parse(
      R"({"recipe": "paper", "batch_size": 2, "attention": {"prior": "performer"}})"));
  CHECK(r.name == RecipeName::paper);
  CHECK(r.attention_keys == std::set<std::string>{"prior"});
  r.resolve({});
  CHECK(r.training.batch_size == 2);
  CHECK(r.training.steps == 10'000);
  CHECK(attention_of(r)["prior"] == "performer");
  CHECK(attention_of(r)["feature_divisor"] == 8.0);
  CHECK(keys.to_json()["optimizer"]["learning_rate"] == 2e-6);  // the schema shows what was decided
}

TEST_CASE("recipe: an undecided setting is an error that names it") {
  CHECK(message([] { TrainingSettings().resolved(); }) ==
        "training: steps is not decided; resolve the recipe first");
  CHECK(message([] { LossWeights().resolved(); }) ==
        "losses: approx is not decided; resolve the recipe first");
}

TEST_CASE("recipe: kd is left out where a teacher has massive activations, unless it is given") {
  const RunFacts facts{.massive = "feature 3 of the first token is 900"};
  Recipe recipe;
  const std::vector<std::string> notes = recipe.resolve(facts);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("(feature 3 of the first token is 900)") != std::string::npos);
  CHECK(notes[0].find("losses.kd is 0") != std::string::npos);
  CHECK(recipe.losses["kd"] == 0);
  CHECK(resolved({}).losses["kd"] == 5);
  Recipe given, paper;
  given.losses["kd"] = 2;
  CHECK(given.resolve(facts).empty());
  CHECK(given.losses["kd"] == 2);
  paper.name = RecipeName::paper;
  CHECK(paper.resolve(facts).empty());
  CHECK(paper.losses["kd"] == 5);
}
