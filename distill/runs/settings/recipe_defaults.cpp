// The values of the named recipes.
#include "distill/runs/settings/recipe_defaults.h"

#include "distill/losses/loss_table.h"

namespace brine::distill {
namespace {

// What all recipes have in common.
RecipeDefaults common(const RunFacts& facts) {
  RecipeDefaults d;
  TrainingSettings& t = d.training;
  t.sequence_length = 0;
  t.recompute = false;
  t.schedule = nn::Decay::constant;
  if (facts.task.empty()) {
    t.eval_every = 0;
    t.warmup_steps = 0;
  }
  for (const Loss& loss : losses()) d.losses[loss.name] = loss.weight;  // the paper's table
  d.attention = {{"decoder", "paper"}};
  return d;
}

// A run of minutes is short for an estimator with random weights: its rate is high and its
// loss has the largest weight, while the rate of the teacher's weights decays.
RecipeDefaults short_defaults(const RunFacts& facts) {
  RecipeDefaults d = common(facts);
  TrainingSettings& t = d.training;
  if (facts.causal) d.attention = {{"preset", "light"}};  // measured: docs/results/README.md
  t.attention_learning_rate = 1e-2;
  t.schedule = nn::Decay::linear;
  d.losses["approx"] = 20;
  if (facts.task.empty()) {
    t.steps = 1000;
    t.batch_size = 4;
    t.learning_rate = 3e-4;
  } else {
    d.task_steps = 300;
    t.batch_size = 32;
    t.learning_rate = 3e-5;
    // Measured: docs/results/README.md.
    if (!facts.causal) d.attention = {{"preset", "light"}, {"columns", "64"}};
    d.attention.emplace_back("gate_bias", "2");
  }
  return d;
}

// Batch sizes and epochs of the paper's GLUE table.
struct PaperTask {
  const char* name;
  int64_t batch_size;
  double epochs;
};
constexpr PaperTask kPaperTasks[] = {{"mnli", 16, 20}, {"cola", 64, 50}, {"mrpc", 32, 50}};

RecipeDefaults paper_defaults(const RunFacts& facts) {
  RecipeDefaults d = common(facts);
  TrainingSettings& t = d.training;
  t.batch_size = 32;
  t.attention_learning_rate = 1e-4;
  const bool text = facts.task.empty();
  if (text) {
    t.steps = 10'000;
    t.learning_rate = 2e-6;
    t.recompute = true;
  } else {
    t.learning_rate = 1e-5;
    t.sequence_length = 256;
    for (const PaperTask& task : kPaperTasks) {
      if (facts.task != task.name) continue;
      t.batch_size = task.batch_size;
      d.epochs = task.epochs;
    }
  }
  d.attention = {{"k", text ? "64" : "25"},
                 {"columns", text ? "64" : "32"},
                 {"mode", "causal-per-batch"},
                 {"decoder", "paper"},
                 {"features", text ? "relu" : "softmax"},
                 {"feature_divisor", text ? "8" : "1"},
                 {"mu_scope", text ? "token" : "head"},
                 {"prior", "none"}};
  return d;
}

}  // namespace

RecipeDefaults defaults_of(RecipeName name, const RunFacts& facts) {
  return name == RecipeName::paper ? paper_defaults(facts) : short_defaults(facts);
}

}  // namespace brine::distill
