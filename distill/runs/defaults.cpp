// The defaults of a distillation: one table by stage, method, task and length.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "distill/losses/loss_table.h"
#include "distill/runs/distillation.h"
#include "nn/io/shared_student.h"

namespace brine::distill {
namespace {

constexpr const char* kCalibrated = "blocks";  // the method without a gradient

// Mixed windows are drawn from `shortest` to `longest` by doubling, as far as the teacher has
// positions; 0: all windows have one length.
struct Row {
  int64_t steps, batch_size;  // steps 0: from epochs
  double base_rate, attention_rate;
  nn::Decay schedule;
  int64_t warmup_steps;
  bool recompute, whole_base;  // whole_base: it is trained unless there is a rank, else frozen
  int64_t lora_rank;
  double approx, prob, context, kd, kd_task, task;
  int64_t sequence_length, shortest, longest;  // sequence_length 0: the teacher's positions
};

constexpr nn::Decay kLinear = nn::Decay::linear, kConstant = nn::Decay::constant;
constexpr int64_t kStart = nn::kCalibrationTokens;
// attention, after: a quarter of an hour each on two cores for a model of 135 M parameters. After
//   stage attention the estimator keeps learning and the logits follow the teacher's. Squared
//   distances of hidden states are out of all proportion in decoders with massive activations (a
//   few numbers of the first token in the thousands): SmolLM2's kd was 99 % of the loss.
// calibration, blocks: masks of blocks leave keys out in long windows alone; docs/results/README.md
//   has what stage joint gains.
// short: a run of minutes is short for an estimator with random weights: its rate is high and its
//   loss has the largest weight, while the rate of the teacher's weights decays.
// clang-format off
constexpr bool no = false, yes = true;
constexpr Row
    // steps, batch, rates (base, attention), schedule, warm-up; recompute, whole base, rank;
    // approx, prob, context, kd, kd_task, task; window, mixed windows
    kAttention = {200, 2, 0, 1e-2, kLinear, 10, no, no, 0,  10, 0, 1, 0, 0, 0,  1024, 512, 2048},
    kCalibration = {1, 2, 0, 1e-2, kLinear, 10, no, no, 0,  0, 0, 0, 0, 0, 0,  kStart, 8192, 8192},
    kAfter = {300, 2, 1e-4, 1e-3, kLinear, 10, no, no, 0,  1, 0, 0, 0, 1, 0,  1024, 512, 2048},
    kBlocks = {24, 1, 3e-4, 1e-3, kLinear, 10, yes, no, 16,  0, 0, 0, 0, 1, 0,  kStart, 8192, 8192},
    kShort = {1000, 4, 3e-4, 1e-2, kLinear, 0, no, yes, 0,  20, 1, 1, 5, .2, .1,  0, 0, 0},
    kShortTask = {300, 32, 3e-5, 1e-2, kLinear, 0, no, yes, 0,  20, 1, 1, 5, .2, .1,  0, 0, 0},
    kPaper = {10'000, 32, 2e-6, 1e-4, kConstant, 0, yes, yes, 0,  1, 1, 1, 5, .2, .1,  0, 0, 0},
    kPaperTask = {0, 32, 1e-5, 1e-4, kConstant, 0, no, yes, 0,  1, 1, 1, 5, .2, .1,  256, 0, 0};
// clang-format on
constexpr double kRetrievalShare = 0.25;  // of mixed windows

// From about so many tokens on an encoder's attention was measured to be faster than the exact one,
// by its decoder (docs/classification.md).
struct Faster {
  const char *decoder, *name;
  int64_t tokens;
};
constexpr Faster kFaster[] = {{"none", "light", 700}, {"paper", "the paper's estimator", 2300}};

// Batch sizes and epochs of the paper's GLUE table.
struct PaperTask {
  const char* name;
  int64_t batch_size;
  double epochs;
};
constexpr PaperTask kPaperTasks[] = {{"mnli", 16, 20}, {"cola", 64, 50}, {"mrpc", 32, 50}};

const Row& row_of(const Distillation& what, Stage stage) {
  const bool blocks = what.student.attention == kCalibrated, paper = what.recipe == Recipe::paper;
  if (stage == Stage::attention) return blocks ? kCalibration : kAttention;
  if (blocks && !what.recipe) return kBlocks;
  if (what.follows()) return kAfter;
  if (what.on_task()) return paper ? kPaperTask : kShortTask;
  return paper ? kPaper : kShort;
}

// "512,1024,2048" as far as the teacher has positions; a shorter one has windows of one length.
std::string lengths_of(const Row& row, int64_t positions) {
  std::string out;
  for (int64_t n = row.shortest; n <= std::min(row.longest, positions); n *= 2)
    out += (out.empty() ? "" : ",") + std::to_string(n);
  return out.empty() ? std::to_string(positions) : out;
}

// The settings of a stage; those of a task without steps, warm-up and evaluations.
void give(const Row& row, Stage stage, const Distillation& what, const TeacherFacts& facts,
          TrainingSettings& t, LossWeights& weights) {
  t.sequence_length =
      facts.dump_tokens ? facts.dump_tokens : std::min(row.sequence_length, facts.positions);
  t.batch_size = row.batch_size;
  t.recompute = row.recompute;
  t.learning_rate = row.base_rate;
  t.attention_learning_rate = row.attention_rate;
  t.schedule = row.schedule;
  if (!what.on_task()) {
    t.eval_every = 0;
    t.warmup_steps = row.warmup_steps;
  }
  const bool by_epochs = what.on_task() && what.epochs;
  if (row.steps > 0 && !by_epochs) t.steps = row.steps;
  weights["approx"] = row.approx;
  weights["context"] = row.context;
  if (stage == Stage::attention) return;  // it has no others
  for (const Loss& loss : losses())
    if (!weights[loss.name]) weights[loss.name] = 0;
  weights["prob"] = row.prob;
  weights["kd"] = row.kd;
  weights["kd_task"] = row.kd_task;
  weights["task"] = row.task;
}

}  // namespace

Distillation Distillation::defaults(const TeacherFacts& facts) const {
  Distillation d;
  const bool begins = student.attention == kCalibrated && model.empty();
  d.stages = begins ? Stages::attention : Stages::joint;
  const Stage first = has(Stage::attention) ? Stage::attention : Stage::joint;
  const Row &row = row_of(*this, first), &last = row_of(*this, Stage::joint);
  give(row, first, *this, facts, d.training, d.losses);
  if (follows()) give(last, Stage::joint, *this, facts, d.joint.training, d.joint.losses);
  if (dump.empty() && !on_task() && !self_taught() && (row.shortest || mixes())) {
    const int64_t window = training.sequence_length.value_or(0);
    if (row.shortest)
      d.text.lengths = window > 0 ? std::to_string(window) : lengths_of(row, facts.positions);
    d.text.retrieval_share = row.shortest ? kRetrievalShare : 0;
  }
  if (has(Stage::joint)) {  // a rate of the base without a rank is that of the whole base
    const auto& given = follows() ? joint.training.learning_rate : training.learning_rate;
    d.lora_rank = lora_rank.value_or(given || !model.empty() ? 0 : last.lora_rank);
    auto& rate = follows() ? d.joint.training.learning_rate : d.training.learning_rate;
    if (!last.whole_base && *d.lora_rank + model_rank == 0) rate = 0;
  }
  if (first == Stage::attention) {
    d.feature_rate = 2e-2;
    return d;
  }
  d.epochs = 20;
  if (last.whole_base) d.recipe = Recipe::short_run;
  for (const PaperTask& paper : kPaperTasks) {
    if (recipe != Recipe::paper || task.task != paper.name) continue;
    d.training.batch_size = paper.batch_size;
    d.epochs = paper.epochs;
  }
  return d;
}

std::vector<std::pair<std::string, std::string>> Distillation::attention_defaults(
    bool causal) const {
  if (has(Stage::attention)) return {{"preset", "light"}};
  if (recipe == Recipe::paper)
    return {{"k", on_task() ? "25" : "64"},
            {"columns", on_task() ? "32" : "64"},
            {"mode", "causal-per-batch"},
            {"decoder", "paper"},
            {"features", on_task() ? "softmax" : "relu"},
            {"feature_divisor", on_task() ? "1" : "8"},
            {"mu_scope", on_task() ? "head" : "token"},
            {"prior", "none"}};
  // Measured: docs/results/README.md.
  if (!on_task()) return {causal ? std::pair("preset", "light") : std::pair("decoder", "paper")};
  if (causal) return {{"preset", "light"}, {"gate_bias", "2"}};
  return {{"preset", "light"}, {"columns", "64"}, {"gate_bias", "2"}};
}

std::string Distillation::no_gain(const TeacherFacts& facts) const {
  if (facts.causal || student.attention != "sea" || !model.empty() || mixes()) return "";
  const bool texts = facts.text_tokens > 0;
  const int64_t tokens = texts ? facts.text_tokens : training.sequence_length.value_or(0);
  nn::ModelConfig config = student;
  data::Schema keys = data::schema_of(config.method());
  for (const Faster& faster : kFaster) {
    if (keys.to_json()["decoder"] != faster.decoder || tokens == 0 || tokens >= faster.tokens)
      continue;
    return join("not shorter: ", texts ? "nine of ten texts have at most " : "windows have ",
                tokens, " tokens, ", faster.name, " is faster than exact attention from about ",
                faster.tokens);
  }
  return "";
}

nn::ModelConfig Distillation::of_sea() {
  nn::ModelConfig config;
  config.attention = "sea";
  return config;
}

}  // namespace brine::distill
